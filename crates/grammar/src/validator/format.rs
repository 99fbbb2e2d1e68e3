//! The formats of strings, as their RFCs define them.

use super::uri::UriReference;

/// A format's name and its check of a text.
type Format = (&'static str, fn(&str) -> bool);

/// The formats that are checked.
pub(super) const FORMATS: [Format; 9] = [
    ("date", is_date),
    ("time", is_time),
    ("date-time", is_date_time),
    ("duration", is_duration),
    ("email", is_email),
    ("hostname", is_hostname),
    ("ipv4", is_ipv4),
    ("uuid", is_uuid),
    ("uri", is_uri),
];

/// The number of a text that has exactly this many digits.
fn number(text: &str, digits: usize) -> Option<u32> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// `full-date` of RFC 3339, section 5.6.
fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts[..] else { return false };
    let (Some(year), Some(month), Some(day)) = (number(year, 4), number(month, 2), number(day, 2)) else {
        return false;
    };
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if is_leap => 29,
        2 => 28,
        _ => 0,
    };
    (1..=days).contains(&day)
}

/// `full-time` of RFC 3339, section 5.6. A leap second is the last one of a day in UTC.
fn is_time(text: &str) -> bool {
    let Some(zone_at) = text.find(['Z', 'z', '+', '-']) else { return false };
    let (clock, zone) = text.split_at(zone_at);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let parts: Vec<&str> = clock.split(':').collect();
    let [hour, minute, second] = parts[..] else { return false };
    let (Some(hour), Some(minute), Some(second)) = (number(hour, 2), number(minute, 2), number(second, 2))
    else {
        return false;
    };
    let Some(offset) = zone_minutes(zone) else { return false };
    let has_fraction = !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let minute_of_day = (i64::from(hour * 60 + minute) - offset).rem_euclid(24 * 60);
    let is_leap = second == 60 && minute_of_day == 24 * 60 - 1;
    has_fraction && hour < 24 && minute < 60 && (second < 60 || is_leap)
}

/// The minutes of a zone east of UTC.
fn zone_minutes(zone: &str) -> Option<i64> {
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let (sign, rest) = match zone.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, zone.strip_prefix('+')?),
    };
    let (hours, minutes) = rest.split_once(':')?;
    let (hours, minutes) = (number(hours, 2)?, number(minutes, 2)?);
    (hours < 24 && minutes < 60).then(|| sign * i64::from(hours * 60 + minutes))
}

/// `date-time` of RFC 3339, section 5.6.
fn is_date_time(text: &str) -> bool {
    text.split_once(['T', 't']).is_some_and(|(date, time)| is_date(date) && is_time(time))
}

/// `duration` of RFC 3339, appendix A: the units are neighbours in their order, or weeks alone.
fn is_duration(text: &str) -> bool {
    let Some(text) = text.strip_prefix('P') else { return false };
    let (date, time) = match text.split_once('T') {
        Some((date, time)) => (date, Some(time)),
        None => (text, None),
    };
    let time_is_right = time.is_none_or(|time| are_units(time, "HMS"));
    match date {
        "" => time.is_some() && time_is_right,
        date => (are_units(date, "YMD") && time_is_right) || (are_units(date, "W") && time.is_none()),
    }
}

/// Whether a text is one or more numbers, each with a unit, whose units stand side by side in `units`.
fn are_units(text: &str, units: &str) -> bool {
    let mut used = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(|char: char| !char.is_ascii_digit()) {
        if at == 0 {
            return false;
        }
        let (unit, after) = rest[at..].split_at(rest[at..].chars().next().map_or(0, char::len_utf8));
        used.push_str(unit);
        rest = after;
    }
    rest.is_empty() && !used.is_empty() && units.contains(&used)
}

/// `Mailbox` of RFC 5321, section 4.1.2.
fn is_email(text: &str) -> bool {
    let Some((local, domain)) = text.rsplit_once('@') else { return false };
    let is_atom = |atom: &str| {
        !atom.is_empty()
            && atom.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~".contains(&byte))
    };
    let is_local = local.split('.').all(is_atom) || is_quoted(local);
    let is_domain = match domain.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')) {
        Some(literal) => match literal.strip_prefix("IPv6:") {
            Some(address) => is_ipv6(address),
            None => is_ipv4(literal),
        },
        None => is_hostname(domain),
    };
    local.len() <= 64 && is_local && is_domain
}

/// `Quoted-string` of RFC 5321: printable ASCII in quotes, where quotes and backslashes are escaped.
fn is_quoted(text: &str) -> bool {
    let inner = text.strip_prefix('"').and_then(|inner| inner.strip_suffix('"'));
    let Some(inner) = inner.filter(|_| text.len() > 1) else { return false };
    let mut bytes = inner.bytes();
    while let Some(byte) = bytes.next() {
        let escaped = if byte == b'\\' { bytes.next() } else { Some(byte) };
        let is_text = escaped.is_some_and(|byte| (b' '..=b'~').contains(&byte));
        if !is_text || byte == b'"' {
            return false;
        }
    }
    true
}

/// A name of RFC 1123, section 2.1. Names with `--` after two characters are those of RFC 5891, which need
/// tables of Unicode; they are not accepted.
fn is_hostname(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_inside = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let edges = label.starts_with('-') || label.ends_with('-') || label.get(2..4) == Some("--");
        (1..=63).contains(&label.len()) && is_inside && !edges
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// `dotted-quad` of RFC 2673, section 3.2, without leading zeros.
fn is_ipv4(text: &str) -> bool {
    let is_octet = |octet: &str| {
        let is_short = (1..=3).contains(&octet.len()) && (octet == "0" || !octet.starts_with('0'));
        is_short && number(octet, octet.len()).is_some_and(|number| number < 256)
    };
    text.split('.').count() == 4 && text.split('.').all(is_octet)
}

/// `IPv6address` of RFC 3986, section 3.2.2.
fn is_ipv6(text: &str) -> bool {
    text.parse::<std::net::Ipv6Addr>().is_ok()
}

/// The text of RFC 4122, section 3.
fn is_uuid(text: &str) -> bool {
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    lengths == [8, 4, 4, 4, 12] && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

/// `URI` of RFC 3986, section 3: an absolute one.
fn is_uri(text: &str) -> bool {
    let uri = UriReference::split(text);
    let path_is_right = match uri.authority {
        Some(_) => uri.path.is_empty() || uri.path.starts_with('/'),
        None => !uri.path.starts_with("//"),
    };
    let has = |part: Option<&str>, marks: &str| part.is_none_or(|part| has_uri_characters(part, marks));
    uri.scheme.is_some()
        && uri.authority.is_none_or(is_authority)
        && path_is_right
        && has_uri_characters(uri.path, ":@/")
        && has(uri.query, ":@/?")
        && has(uri.fragment, ":@/?")
}

/// `authority` of RFC 3986, section 3.2.
fn is_authority(text: &str) -> bool {
    let (user, rest) = text.rsplit_once('@').unwrap_or(("", text));
    let host_end = rest.rfind(']').map_or_else(|| rest.find(':'), |end| Some(end + 1)).unwrap_or(rest.len());
    let (host, port) = rest.split_at(host_end);
    let port_is_right = match port.strip_prefix(':') {
        Some(port) => port.bytes().all(|byte| byte.is_ascii_digit()),
        None => port.is_empty(),
    };
    let host_is_right = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(literal) => is_ipv6(literal) || is_future_address(literal),
        None => has_uri_characters(host, ""),
    };
    has_uri_characters(user, ":") && port_is_right && host_is_right
}

/// `IPvFuture` of RFC 3986, section 3.2.2.
fn is_future_address(text: &str) -> bool {
    let parts = text.strip_prefix(['v', 'V']).and_then(|rest| rest.split_once('.'));
    parts.is_some_and(|(version, address)| {
        let is_version = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_version && !address.is_empty() && !address.contains('%') && has_uri_characters(address, ":")
    })
}

/// Whether a text has only unreserved characters, `sub-delims`, the given marks, and `%XX` (RFC 3986,
/// section 2).
fn has_uri_characters(text: &str, marks: &str) -> bool {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let mut is_digit = || bytes.next().is_some_and(|byte| byte.is_ascii_hexdigit());
        let is_right = match byte {
            b'%' => is_digit() && is_digit(),
            byte => {
                byte.is_ascii_alphanumeric()
                    || b"-._~!$&'()*+,;=".contains(&byte)
                    || marks.as_bytes().contains(&byte)
            }
        };
        if !is_right {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats, with texts that are of the format and texts that are not.
    const CASES: [(&str, &[&str], &[&str]); 9] = [
        (
            "date",
            &["2024-02-29", "2000-02-29", "1999-12-31"],
            &[
                "2023-02-29",
                "1900-02-29",
                "2024-13-01",
                "2024-1-01",
                "2024-04-31",
                "2024-01-00",
                "२024-01-01",
                "-2024-01-01",
            ],
        ),
        (
            "time",
            &["23:59:60Z", "12:00:00.5z", "08:30:06+00:20", "00:59:60+01:00"],
            &[
                "12:00:00",
                "24:00:00Z",
                "12:00:60Z",
                "12:00:00.Z",
                "12:00Z",
                "12:00:00+24:00",
                "12:00:00+0100",
                "12:00:00é",
            ],
        ),
        (
            "date-time",
            &["1990-12-31T23:59:60Z", "2024-02-29t01:02:03.123-08:00"],
            &["2024-02-29 01:02:03Z", "2024-02-30T01:02:03Z", "2024-02-29", "2024-02-29T"],
        ),
        (
            "duration",
            &["P4DT12H30M5S", "PT0S", "P2W", "P1Y2M", "P1M1D", "PT1H1M"],
            &[
                "P", "PT", "P1Y1D", "PT1H1S", "P1W1D", "1D", "P1", "P1DT", "P1D2H", "P1S", "PT1D", "P1WT1H",
                "P1é",
            ],
        ),
        (
            "email",
            &["a.b@c.de", "\"a b\\\"\"@c.de", "a@[127.0.0.1]", "a@[IPv6:::1]", "a@b"],
            &["a", "@b", "a@", ".a@b", "a..b@c", "a@b_c", "a b@c", "a@[300.0.0.1]", "\"a\"b\"@c", "a@b@"],
        ),
        ("hostname", &["a", "a-b.c1", "1.2"], &["", "-a", "a-", "a..b", "a_b", "a.", "xn--a", "é"]),
        (
            "ipv4",
            &["0.0.0.0", "255.1.20.3"],
            &["256.0.0.1", "1.2.3", "1.2.3.4.5", "01.2.3.4", "1.2.3.", "1.2.3.+4", "1.2.3.é"],
        ),
        (
            "uuid",
            &["2EB8AA08-aa98-11ea-b4aa-73b441d16380"],
            &[
                "2eb8aa08-aa98-11ea-b4aa-73b441d1638",
                "2eb8aa08aa9811eab4aa73b441d16380",
                "2eb8aa08-aa98-11ea-b4aa73b441d1638-00",
                "2eb8aa08-aa98-11ea-b4aa-73b441d1638g",
            ],
        ),
        (
            "uri",
            &[
                "http://a.b/c?d#e",
                "urn:a:b",
                "mailto:a@b",
                "http://[::1]:80/",
                "http://[v1.a:b]/",
                "http://u:p@h:1",
                "a:",
                "http://a?b/c",
            ],
            &[
                "//a/b",
                "/a",
                "a b",
                "http://a b",
                "http://a/%zz",
                "http://[::1",
                "http://a:b",
                "1a:b",
                "http://a/<b>",
                "http://a/#b#c",
                "é:a",
                "http://a/é",
            ],
        ),
    ];

    #[test]
    fn texts_of_each_format_are_told_from_others() {
        for (name, right, wrong) in CASES {
            let (_, is_right) = FORMATS.iter().find(|(format, _)| *format == name).expect("a format");
            right.iter().for_each(|text| assert!(is_right(text), "{name}: {text}"));
            wrong.iter().for_each(|text| assert!(!is_right(text), "{name}: {text}"));
        }
        let long = "a".repeat(64);
        assert!(!is_hostname(&long) && is_hostname(&long[1..]));
        assert!(!is_email(&format!("{long}a@b")) && is_email(&format!("{long}@b")));
    }
}
