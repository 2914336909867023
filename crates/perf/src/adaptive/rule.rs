//! The constants of the adaptive rules. One set for every file; doc/design/history-gate.md has the
//! reason for each.

/// What the adaptive rules are made of. Sizes are natural logarithms of ratios: 0.07 is 7 %.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Rows that a metric must have before its first judgement.
    pub minimum_history: usize,
    /// Most points that a level is the median of.
    pub level_points: usize,
    /// Fewest points that a level may rest on after a shift.
    pub minimum_level_points: usize,
    /// Points before the ones under test that noise and loadings are learned from.
    pub noise_points: usize,
    /// Newest points that a shift is called from.
    pub test_points: usize,
    /// A shift is beyond this many sigma of noise...
    pub shift_sigmas: f64,
    /// ...and at least this large.
    pub shift_floor: f64,
    /// Every tested point lies beyond this part of the limit: two outliers are no shift.
    pub least_part: f64,
    /// A common shift is at least this large.
    pub common_floor: f64,
    /// A common shift is beyond this many sigma of the factor's noise.
    pub common_sigmas: f64,
    /// One point is suspect beyond this many sigma of noise...
    pub suspect_sigmas: f64,
    /// ...and at least this large.
    pub suspect_floor: f64,
    /// Smallest noise that a series is credited with.
    pub sigma_floor: f64,
    /// The upper-quantile spread counts up to this multiple of the other two.
    pub tail_cap: f64,
    /// The quantile of the upper-quantile spread.
    pub tail_quantile: f64,
    /// The normal distribution's value at that quantile of absolute values.
    pub tail_normal: f64,
    /// Spread of loadings around 1 before anything is known of them.
    pub loading_spread: f64,
    /// A common level within this of one that at least two earlier commits had is a known one.
    pub known_level_margin: f64,
    /// Newest points that must all lie at a known level until it counts as a shift.
    pub known_level_run: usize,
    /// Fewest metrics that can share something.
    pub group_minimum: usize,
    /// A host can have changed within a run where a known factor is this much worse...
    pub mixed_step: f64,
    /// ...and so many metrics lie nearer to it.
    pub mixed_metrics: usize,
    /// Commits between two events that are one.
    pub merge_commits: usize,
}

impl Rule {
    /// The constants that every command uses.
    pub const STANDARD: Self = Self {
        minimum_history: 10,
        level_points: 20,
        minimum_level_points: 7,
        noise_points: 40,
        test_points: 3,
        shift_sigmas: 2.6,
        shift_floor: 0.07,
        least_part: 0.3,
        common_floor: 0.07,
        common_sigmas: 2.6,
        suspect_sigmas: 5.0,
        suspect_floor: 0.10,
        sigma_floor: 0.005,
        tail_cap: 2.0,
        tail_quantile: 0.9,
        tail_normal: 1.645,
        loading_spread: 0.5,
        known_level_margin: 0.04,
        known_level_run: 6,
        group_minimum: 5,
        mixed_step: 0.07,
        mixed_metrics: 3,
        merge_commits: 2,
    };
    pub fn from_env() -> Self {
        let mut rule = Self::STANDARD;
        let get = |name: &str, value: &mut f64| if let Ok(text) = std::env::var(name) { *value = text.parse().unwrap() };
        get("SS", &mut rule.shift_sigmas);
        get("LE", &mut rule.least_part);
        get("SF", &mut rule.shift_floor);
        get("CF", &mut rule.common_floor);
        get("CS", &mut rule.common_sigmas);
        get("US", &mut rule.suspect_sigmas);
        get("UF", &mut rule.suspect_floor);
        get("SG", &mut rule.sigma_floor);
        get("TC", &mut rule.tail_cap);
        get("TQ", &mut rule.tail_quantile);
        get("TN", &mut rule.tail_normal);
        get("LS", &mut rule.loading_spread);
        get("KM", &mut rule.known_level_margin);
        get("MS", &mut rule.mixed_step);
        let mut n = rule.minimum_level_points as f64; get("ML", &mut n); rule.minimum_level_points = n as usize;
        let mut n = rule.level_points as f64; get("LP", &mut n); rule.level_points = n as usize;
        let mut n = rule.noise_points as f64; get("NP", &mut n); rule.noise_points = n as usize;
        let mut n = rule.mixed_metrics as f64; get("MM", &mut n); rule.mixed_metrics = n as usize;
        rule
    }

    /// How many commits are looked at before the newest one.
    pub fn lookback(&self) -> usize {
        self.noise_points + self.test_points
    }
}

impl Default for Rule {
    fn default() -> Self {
        Self::STANDARD
    }
}
