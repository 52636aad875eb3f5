//! Commit times as text.

use std::time::{SystemTime, UNIX_EPOCH};

use trellara_envelope::CommitTime;

/// `2026-11-30T08:05:00Z`, by this machine's clock.
pub(crate) fn moment(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(0);
    let whole = text(CommitTime(seconds * 1_000_000 - CommitTime::UNIX_OFFSET_US));
    whole.replace(".000000Z", "Z")
}

/// `2026-11-30T08:05:00.000001Z`.
pub(crate) fn text(time: CommitTime) -> String {
    let microseconds = time.unix_us();
    let seconds = microseconds.div_euclid(1_000_000);
    let (year, month, day) = civil(seconds.div_euclid(86_400));
    let of_day = seconds.rem_euclid(86_400);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:06}Z",
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60,
        microseconds.rem_euclid(1_000_000)
    )
}

/// Year, month and day from days since 1970-01-01, by counting in 400-year eras that begin on a
/// first of March, so that the leap day is a year's last.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        assert_eq!(text(CommitTime(0)), "2000-01-01T00:00:00.000000Z");
        assert_eq!(text(CommitTime(-1)), "1999-12-31T23:59:59.999999Z");
        // 2024-02-29 12:34:56.789 UTC is 1709210096.789 in Unix time.
        let leap = CommitTime(1_709_210_096_789_000 - CommitTime::UNIX_OFFSET_US);
        assert_eq!(text(leap), "2024-02-29T12:34:56.789000Z");
    }
}
