//! `strftime` for chat templates that print today's date. UTC; no leap seconds, no locale. Must not know of templates.

/// Formats a time given in seconds since 1970-01-01T00:00:00Z. An unknown directive stays as it is.
pub(crate) fn strftime(format: &str, unix_seconds: u64) -> String {
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
    const DAYS: [&str; 7] = [
        "Sunday",
        "Monday",
        "Tuesday",
        "Wednesday",
        "Thursday",
        "Friday",
        "Saturday",
    ];
    let days = unix_seconds / 86_400;
    let second = unix_seconds % 86_400;
    let (year, month, day) = civil(days);
    let weekday = DAYS[((days + 4) % 7) as usize];
    let month_name = MONTHS[(month - 1) as usize];
    let hour = second / 3_600;
    let half_hour = (hour + 11) % 12 + 1;
    let mut out = String::with_capacity(format.len() + 16);
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let mut chars = rest[at + 1..].chars();
        let directive = chars.next();
        rest = chars.as_str();
        let written = match directive {
            Some('Y') => year.to_string(),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{month:02}"),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('d') => format!("{day:02}"),
            Some('e') => format!("{day:2}"),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('H') => format!("{hour:02}"),
            Some('I') => format!("{half_hour:02}"),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('M') => format!("{:02}", second / 60 % 60),
            Some('S') => format!("{:02}", second % 60),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('%') | None => "%".to_owned(),
            Some(other) => format!("%{other}"),
        };
        out.push_str(&written);
    }
    out.push_str(rest);
    out
}

/// Year, month and day of a day number (Howard Hinnant, "chrono-compatible low-level date
/// algorithms", `civil_from_days`).
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn dates() {
        assert_eq!(strftime("%d %b %Y", 0), "01 Jan 1970");
        assert_eq!(
            strftime("%A %e %B %Y %H:%M:%S %p %%", 951_825_599),
            "Tuesday 29 February 2000 11:59:59 AM %"
        );
        assert_eq!(strftime("%F %I %Q%", 1_735_689_600), "2025-01-01 12 %Q%");
    }
}
