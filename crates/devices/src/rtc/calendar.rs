//! From seconds to the fields of a clock, in UTC.

const SECONDS_PER_DAY: i64 = 86_400;
/// Days from 0000-03-01 to 1970-01-01. Years that begin in March have their leap day at the end.
const DAYS_BEFORE_1970: i64 = 719_468;
const DAYS_PER_400_YEARS: i64 = 146_097;
/// 9999-12-31 23:59:59: the last moment that two digits of century and year can show.
const LAST_SECOND: i64 = 253_402_300_799;

/// A moment as clock registers hold it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DateTime {
    pub(super) second: u8,
    pub(super) minute: u8,
    pub(super) hour: u8,
    /// 1 is Sunday.
    pub(super) day_of_week: u8,
    pub(super) day: u8,
    pub(super) month: u8,
    pub(super) year_of_century: u8,
    pub(super) century: u8,
}

impl DateTime {
    /// Moments before 1970 and after 9999 show as the first and the last one.
    pub(super) fn from_unix_seconds(seconds: i64) -> Self {
        let seconds = seconds.clamp(0, LAST_SECOND);
        let days = seconds / SECONDS_PER_DAY;
        let second_of_day = seconds % SECONDS_PER_DAY;
        let (year, month, day) = date_of(days);
        Self {
            second: (second_of_day % 60) as u8,
            minute: (second_of_day / 60 % 60) as u8,
            hour: (second_of_day / 3600) as u8,
            // 1970-01-01 was a Thursday.
            day_of_week: ((days + 4) % 7 + 1) as u8,
            day: day as u8,
            month: month as u8,
            year_of_century: (year % 100) as u8,
            century: (year / 100) as u8,
        }
    }
}

/// Year, month and day of the month, `days` (not negative) after 1970-01-01 in the Gregorian calendar.
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + DAYS_BEFORE_1970;
    let era = days / DAYS_PER_400_YEARS;
    let day_of_era = days % DAYS_PER_400_YEARS;
    // One leap day less after each 4 years and 100 years, one more at the end of the 400.
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // From March on, month lengths repeat every five months with 153 days.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let (month, next_year) = if month_from_march < 10 {
        (month_from_march + 3, 0)
    } else {
        (month_from_march - 9, 1)
    };
    (era * 400 + year_of_era + next_year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_follows_the_one_before() {
        let mut expected = (1970, 1, 1);
        for days in 0..=LAST_SECOND / SECONDS_PER_DAY {
            assert_eq!(date_of(days), expected);
            let (year, month, day) = expected;
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let last = match month {
                2 => 28 + i64::from(leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            expected = match (month, day) {
                (12, 31) => (year + 1, 1, 1),
                (_, day) if day == last => (year, month + 1, 1),
                _ => (year, month, day + 1),
            };
        }
        assert_eq!(expected, (10_000, 1, 1));
    }

    #[test]
    fn moments_out_of_range_are_clamped() {
        assert_eq!(
            DateTime::from_unix_seconds(i64::MIN),
            DateTime::from_unix_seconds(0)
        );
        let last = DateTime::from_unix_seconds(i64::MAX);
        assert_eq!((last.century, last.year_of_century), (99, 99));
        assert_eq!((last.hour, last.minute, last.second), (23, 59, 59));
        assert_eq!(last.day_of_week, 6, "a Friday");
    }
}
