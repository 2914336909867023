//! Quantiles of the standard normal distribution.

/// The value below which the share `p` of the standard normal distribution lies; infinite at the ends.
///
/// Found by bisection of the upper tail: not quick, but needed a few times per report only.
pub fn normal_quantile(p: f64) -> f64 {
    if p <= 0.0 {
        return f64::NEG_INFINITY;
    }
    if p >= 1.0 {
        return f64::INFINITY;
    }
    let (mut low, mut high) = (-40.0, 40.0);
    // Each turn halves the bracket; after 64 the ends are neighbouring numbers.
    for _ in 0..64 {
        let middle = f64::midpoint(low, high);
        let below = if middle < 0.0 {
            upper_tail(-middle)
        } else {
            1.0 - upper_tail(middle)
        };
        if below < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// The share of the standard normal distribution above `x` >= 0.
///
/// Near zero by the series of the integral, further out by the continued fraction of Mills' ratio
/// (Abramowitz and Stegun, 26.2.11 and 26.2.14), each where it converges fast.
fn upper_tail(x: f64) -> f64 {
    let density = (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
    if x < 3.0 {
        let (mut term, mut sum) = (x, x);
        for k in 1..100 {
            term *= x * x / f64::from(2 * k + 1);
            sum += term;
        }
        return 0.5 - density * sum;
    }
    let mut fraction = x;
    for k in (1..100).rev() {
        fraction = x + f64::from(k) / fraction;
    }
    density / fraction
}
