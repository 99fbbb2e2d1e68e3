//! The formats of strings, as expressions. Each accepts only texts that its standard and the
//! validator of finished replies accept; some standards allow more.

use girih_tensor::Result;

use crate::limits::refused;

macro_rules! date {
    () => {
        concat!(
            r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
            r"|02-(?:0[1-9]|1[0-9]|2[0-8]))",
            r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
        )
    };
}

macro_rules! time {
    () => {
        concat!(
            r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?",
            r"(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
        )
    };
}

macro_rules! octet {
    () => {
        r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
    };
}

macro_rules! ipv4 {
    () => {
        concat!("(?:", octet!(), r"\.){3}", octet!())
    };
}

macro_rules! label {
    () => {
        r"[0-9A-Za-z](?:[0-9A-Za-z]{0,61}[0-9A-Za-z])?"
    };
}

/// The formats that are enforced, and their expressions.
pub(crate) const FORMATS: [(&str, &str); 9] = [
    ("date", date!()),
    ("time", time!()),
    ("date-time", concat!(date!(), "[tT]", time!())),
    (
        "duration",
        concat!(
            r"P(?:[0-9]{1,9}W|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)",
            r"(?:T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))?",
            r"|T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))"
        ),
    ),
    (
        "email",
        concat!(
            r"[0-9A-Za-z_+](?:[0-9A-Za-z_+.-]{0,30}[0-9A-Za-z_+])?@",
            label!(),
            r"(?:\.",
            label!(),
            r"){1,3}"
        ),
    ),
    ("hostname", concat!(label!(), r"(?:\.", label!(), r"){0,3}")),
    ("ipv4", ipv4!()),
    ("uuid", r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"),
    (
        "uri",
        concat!(
            r"[A-Za-z][0-9A-Za-z+.-]*://",
            label!(),
            r"(?:\.",
            label!(),
            r"){0,3}(?::[0-9]{1,4})?(?:/(?:[0-9A-Za-z._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*",
            r"(?:\?(?:[0-9A-Za-z._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?",
            r"(?:#(?:[0-9A-Za-z._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?"
        ),
    ),
];

/// The expression of a format.
///
/// # Errors
/// When the format is not enforced; names it.
pub(crate) fn format_pattern(name: &str) -> Result<&'static str> {
    let found = FORMATS.iter().find(|(format, _)| *format == name);
    found.map(|(_, pattern)| *pattern).ok_or_else(|| {
        let names: Vec<&str> = FORMATS.iter().map(|(name, _)| *name).collect();
        let shown: String = name.chars().take(40).collect();
        refused(format!(
            "the format '{shown}' is not supported: remove it, use pattern, or one of {}",
            names.join(", ")
        ))
    })
}
