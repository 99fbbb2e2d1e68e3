//! The formats of strings, as expressions. What is written is only what its standard and the validator of
//! finished replies accept; some standards allow more.

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

/// As `date!`, without the year 0, which Python does not have.
macro_rules! written_date {
    () => {
        concat!(
            r"(?:(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})",
            r"-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
            r"|02-(?:0[1-9]|1[0-9]|2[0-8]))",
            r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
        )
    };
}

/// What Python and JavaScript read, too: no more than microseconds, and capital letters.
macro_rules! time {
    () => {
        concat!(
            r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?",
            r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
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

macro_rules! loose_time {
    () => {
        r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:[zZ]|[+-][0-9]{2}:[0-9]{2})"
    };
}

macro_rules! uuid {
    () => {
        r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
    };
}

/// A format that is enforced.
#[derive(Debug)]
pub(crate) struct StringFormat {
    name: &'static str,
    /// The texts that are written where the format is demanded.
    pub written: &'static str,
    /// At least all texts that the validator accepts: what is demanded not to have the format has none of these.
    pub all: &'static str,
}

/// The formats that are enforced.
static FORMATS: [StringFormat; 9] = [
    StringFormat { name: "date", written: written_date!(), all: date!() },
    StringFormat { name: "time", written: time!(), all: loose_time!() },
    StringFormat {
        name: "date-time",
        written: concat!(written_date!(), "T", time!()),
        all: concat!(date!(), "[tT]", loose_time!()),
    },
    StringFormat {
        name: "duration",
        written: concat!(
            r"P(?:[0-9]{1,9}W|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)",
            r"(?:T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))?",
            r"|T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))"
        ),
        all: "P[0-9YMWDTHS]+",
    },
    StringFormat {
        name: "email",
        written: concat!(
            r"[0-9A-Za-z_+](?:[0-9A-Za-z_+.-]{0,30}[0-9A-Za-z_+])?@",
            label!(),
            r"(?:\.",
            label!(),
            r"){1,3}"
        ),
        all: "(?s:.*@.*)",
    },
    StringFormat {
        name: "hostname",
        written: concat!(label!(), r"(?:\.", label!(), r"){0,3}"),
        all: "[0-9A-Za-z.-]+",
    },
    StringFormat { name: "ipv4", written: ipv4!(), all: ipv4!() },
    StringFormat { name: "uuid", written: uuid!(), all: uuid!() },
    StringFormat {
        name: "uri",
        written: concat!(
            r"[A-Za-z][0-9A-Za-z+.-]*://",
            label!(),
            r"(?:\.",
            label!(),
            r"){0,3}(?::[0-9]{1,4})?(?:/(?:[0-9A-Za-z._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*",
            r"(?:\?(?:[0-9A-Za-z._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?",
            r"(?:#(?:[0-9A-Za-z._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?"
        ),
        all: "(?s:[0-9A-Za-z+.-]+:.*)",
    },
];

/// A format by its name.
///
/// # Errors
/// When the format is not enforced; names it.
pub(crate) fn string_format(name: &str) -> Result<&'static StringFormat> {
    FORMATS.iter().find(|format| format.name == name).ok_or_else(|| {
        let names: Vec<&str> = FORMATS.iter().map(|format| format.name).collect();
        let shown: String = name.chars().take(40).collect();
        refused(format!(
            "the format '{shown}' is not supported: remove it, use pattern, or one of {}",
            names.join(", ")
        ))
    })
}
