//! How long a model stays loaded after its last request, as clients of Ollama and LM Studio ask for it.

use std::time::Duration;

use serde::Deserialize;
use utoipa::ToSchema;

use crate::error::ApiError;

/// The maximum of a time in seconds, some 30 years; more is forever.
const MAX_SECONDS: f64 = 1e9;

/// How long a model stays loaded: seconds, or a duration such as `5m`; a negative one is forever.
#[derive(Clone, Debug, Deserialize, PartialEq, ToSchema)]
#[serde(untagged, expecting = "must be a number of seconds or a duration such as \"5m\"")]
pub enum KeepAliveBody {
    /// Seconds.
    Seconds(f64),
    /// A duration, as Go writes it.
    Text(String),
}

/// How long a model stays loaded after its last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// This long; zero is as long as requests use it.
    For(Duration),
    /// Until another model needs its room.
    Forever,
}

impl KeepAliveBody {
    /// What it asks for.
    ///
    /// # Errors
    /// When the text is no duration.
    pub fn checked(&self, param: &str) -> Result<KeepAlive, ApiError> {
        let seconds = match self {
            KeepAliveBody::Seconds(seconds) => Some(*seconds),
            KeepAliveBody::Text(text) => seconds(text),
        };
        match seconds {
            Some(seconds) if !(0.0..=MAX_SECONDS).contains(&seconds) => Ok(KeepAlive::Forever),
            Some(seconds) => Ok(KeepAlive::For(Duration::from_secs_f64(seconds))),
            None => {
                let message =
                    format!("{param} must be a number of seconds or a duration such as 5m or 1h30m");
                Err(ApiError::invalid(param, message))
            }
        }
    }
}

/// The seconds of a text: a number, or numbers with units.
fn seconds(text: &str) -> Option<f64> {
    let (sign, mut rest) = text.strip_prefix('-').map_or((1.0, text), |rest| (-1.0, rest));
    if let Ok(number) = rest.parse::<f64>() {
        return number.is_finite().then_some(sign * number);
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
        total += number
            * match &rest[..letters] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                _ => return None,
            };
        rest = &rest[letters..];
    }
    (!text.trim_start_matches('-').is_empty()).then_some(sign * total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_go() {
        let of = |text: &str| KeepAliveBody::Text(text.to_owned()).checked("keep_alive");
        let after = |seconds| KeepAlive::For(Duration::from_millis(seconds));
        for (text, expected) in [
            ("5m", after(300_000)),
            ("1h30m", after(5_400_000)),
            ("1.5s", after(1500)),
            ("250ms", after(250)),
            ("0", after(0)),
            ("24h", after(86_400_000)),
            ("-1", KeepAlive::Forever),
            ("-1m", KeepAlive::Forever),
        ] {
            assert_eq!(of(text).unwrap(), expected, "{text}");
        }
        for wrong in ["", "5 m", "m", "5x", "five", "1h30", "-", "5m-"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        let number = |seconds| KeepAliveBody::Seconds(seconds).checked("ttl").unwrap();
        assert_eq!(
            (number(60.0), number(-1.0), number(1e12)),
            (after(60_000), KeepAlive::Forever, KeepAlive::Forever)
        );
    }
}
