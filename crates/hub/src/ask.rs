//! A question to a server of models, such as one of girih, whose answer is JSON.

use std::time::Duration;

use girih_tensor::{Error, Result};
use ureq::Agent;

use super::address::Address;

/// The time for the whole exchange.
const TIME: Duration = Duration::from_secs(30);

/// The maximum number of bytes of an answer.
const MAX_BYTES: u64 = 4 << 20;

/// Asks a server: GET, or POST of a `body` of JSON. Returns the status and the text of the answer. No proxy is used and no
/// redirect followed.
///
/// # Errors
/// When the URL is none, or the server does not answer.
pub fn ask_server(url: &str, key: Option<&str>, body: Option<&str>) -> Result<(u16, String)> {
    let address = Address::parse(url).map_err(|why| Error::new(format!("{url:?} is not a URL: {why}")))?;
    let agent: Agent = Agent::config_builder()
        .user_agent(concat!("girih/", env!("CARGO_PKG_VERSION")))
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None)
        .timeout_global(Some(TIME))
        .build()
        .new_agent();
    let bearer = key.map(|key| format!("Bearer {key}"));
    let sent = match body {
        None => {
            let request = agent.get(address.as_str());
            let request =
                bearer.iter().fold(request, |request, bearer| request.header("Authorization", bearer));
            request.call()
        }
        Some(body) => {
            let request = agent.post(address.as_str()).header("Content-Type", "application/json");
            let request =
                bearer.iter().fold(request, |request, bearer| request.header("Authorization", bearer));
            request.send(body)
        }
    };
    let mut response = sent.map_err(|error| Error::new(format!("{address}: {error}")))?;
    let text = response.body_mut().with_config().limit(MAX_BYTES).read_to_string();
    let text = text.map_err(|error| Error::new(format!("{address}: {error}")))?;
    Ok((response.status().as_u16(), text))
}
