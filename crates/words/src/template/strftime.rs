//! Dates for templates: Python's `strftime` in the C locale.

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A date and time of day in the Gregorian calendar, without a time zone.
struct Moment {
    year: i64,
    /// 1 to 12.
    month: u32,
    /// 1 to 31.
    day: u32,
    /// 0 is January 1.
    day_of_year: u32,
    /// 0 is Sunday.
    weekday: u32,
    second_of_day: u32,
}

/// Formats the moment `seconds` after 1970-01-01 00:00.
///
/// The text has no time zone, like Python's naive `datetime.now()`; for local time,
/// add its offset to `seconds`. An unknown directive is an error.
pub fn strftime(format: &str, seconds: i64) -> Result<String, String> {
    let mut out = String::new();
    Moment::new(seconds)?.write_all(format, &mut out)?;
    Ok(out)
}

/// Whether numbers are padded with zeros; `%-d` is not padded.
#[derive(Clone, Copy, PartialEq)]
enum Padding {
    Usual,
    None,
}

impl Moment {
    fn new(seconds: i64) -> Result<Moment, String> {
        const DAY_SECONDS: i64 = 86_400;
        // Years 1 to 9999, Python's range.
        if !(-62_135_596_800..=253_402_300_799).contains(&seconds) {
            return Err(format!("{seconds} s since 1970 lies outside the years 1 to 9999"));
        }
        let days = seconds.div_euclid(DAY_SECONDS);
        let (year, month, day) = civil(days);
        Ok(Moment {
            year,
            month,
            day,
            day_of_year: small(days - days_to(year, 1, 1)),
            weekday: small((days + 4).rem_euclid(7)),
            second_of_day: small(seconds.rem_euclid(DAY_SECONDS)),
        })
    }

    fn write_all(&self, format: &str, out: &mut String) -> Result<(), String> {
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let (directive, padding) = match chars.next() {
                Some('-') => (chars.next(), Padding::None),
                directive => (directive, Padding::Usual),
            };
            match (directive, padding) {
                (None, _) => return Err(format!("the date format '{format}' ends within a directive")),
                (Some(directive), _) if self.write_number(directive, padding, out) => {}
                (Some(directive), Padding::Usual) => self.write_text(directive, out)?,
                (Some(directive), Padding::None) => return Err(unknown(&format!("-{directive}"))),
            }
        }
        Ok(())
    }

    /// Writes a directive that is a number; returns `false` for any other.
    fn write_number(&self, directive: char, padding: Padding, out: &mut String) -> bool {
        let hour = self.second_of_day / 3600;
        let (value, width) = match directive {
            'd' => (self.day, 2),
            'm' => (self.month, 2),
            'y' => (small(self.year % 100), 2),
            'H' => (hour, 2),
            'I' => ((hour + 11) % 12 + 1, 2),
            'M' => (self.second_of_day / 60 % 60, 2),
            'S' => (self.second_of_day % 60, 2),
            'f' => (0, 6),
            'j' => (self.day_of_year + 1, 3),
            'U' => ((self.day_of_year + 7 - self.weekday) / 7, 2),
            'W' => ((self.day_of_year + 7 - (self.weekday + 6) % 7) / 7, 2),
            'w' => (self.weekday, 1),
            'u' => ((self.weekday + 6) % 7 + 1, 1),
            _ => return false,
        };
        match padding {
            Padding::Usual => out.push_str(&format!("{value:0width$}")),
            Padding::None => out.push_str(&value.to_string()),
        }
        true
    }

    /// Writes a directive that is a name or a combination of others.
    fn write_text(&self, directive: char, out: &mut String) -> Result<(), String> {
        let day = DAYS[self.weekday as usize];
        let month = MONTHS[self.month as usize - 1];
        match directive {
            'A' => out.push_str(day),
            'a' => out.push_str(&day[..3]),
            'B' => out.push_str(month),
            'b' | 'h' => out.push_str(&month[..3]),
            'p' => out.push_str(if self.second_of_day < 43_200 { "AM" } else { "PM" }),
            'Y' => out.push_str(&self.year.to_string()),
            'e' => out.push_str(&format!("{:2}", self.day)),
            'z' | 'Z' => {}
            '%' => out.push('%'),
            'n' => out.push('\n'),
            't' => out.push('\t'),
            'D' | 'x' => self.write_all("%m/%d/%y", out)?,
            'F' => self.write_all("%Y-%m-%d", out)?,
            'T' | 'X' => self.write_all("%H:%M:%S", out)?,
            'R' => self.write_all("%H:%M", out)?,
            'c' => self.write_all("%a %b %e %H:%M:%S %Y", out)?,
            _ => return Err(unknown(&directive.to_string())),
        }
        Ok(())
    }
}

fn unknown(directive: &str) -> String {
    format!("the date directive %{directive} is not supported")
}

/// Converts a number of the calendar, which is small and not negative.
fn small(value: i64) -> u32 {
    u32::try_from(value).expect("the calendar's numbers are small")
}

/// Days from 1970-01-01 to a date (Howard Hinnant, "chrono-compatible
/// low-level date algorithms", days_from_civil).
fn days_to(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Year, month and day from the days since 1970-01-01 (same source,
/// civil_from_days).
fn civil(days: i64) -> (i64, u32, u32) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), small(month), small(day))
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn dates_equal_those_of_python() {
        let all = "%a %A %b %B %d %e %H %I %j %m %M %p %S %y %Y %U %W %w %u %F %T %D %R %c %% %-d %-m %z";
        let cases = [
            (
                0,
                "Thu Thursday Jan January 01  1 00 12 001 01 00 AM 00 70 1970 00 00 4 4 \
                 1970-01-01 00:00:00 01/01/70 00:00 Thu Jan  1 00:00:00 1970 % 1 1 ",
            ),
            (
                1_709_210_096,
                "Thu Thursday Feb February 29 29 12 12 060 02 34 PM 56 24 2024 08 09 4 4 \
                 2024-02-29 12:34:56 02/29/24 12:34 Thu Feb 29 12:34:56 2024 % 29 2 ",
            ),
            (
                -1,
                "Wed Wednesday Dec December 31 31 23 11 365 12 59 PM 59 69 1969 52 52 3 3 \
                 1969-12-31 23:59:59 12/31/69 23:59 Wed Dec 31 23:59:59 1969 % 31 12 ",
            ),
        ];
        for (seconds, want) in cases {
            assert_eq!(strftime(all, seconds).expect("every directive is known"), want);
        }
    }

    #[test]
    fn unknown_directives_are_refused() {
        assert_eq!(strftime("%Q", 0).unwrap_err(), "the date directive %Q is not supported");
        assert_eq!(strftime("%", 0).unwrap_err(), "the date format '%' ends within a directive");
        assert!(strftime("%Y", i64::MAX).is_err());
    }
}
