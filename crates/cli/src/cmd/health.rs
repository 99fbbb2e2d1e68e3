//! `girih health`: whether a server answers, for the health checks of containers, which have no other program.

use girih_hub::ask_server;

use super::outcome::Outcome;
use crate::error::{Error, Result};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Address of the server.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// Ask whether its models are loaded, too.
    #[arg(long)]
    ready: bool,
    /// API key of the server, which --ready needs where the server has keys; other users of this machine can read it
    /// unless GIRIH_API_KEY sets it.
    #[arg(long, value_name = "KEY", hide_default_value = true)]
    api_key: Option<String>,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let path = if args.ready { "ready" } else { "health" };
    let url = format!("{}/{path}", args.url.trim_end_matches('/').trim_end_matches("/v1"));
    // A key may have a name, `NAME:KEY`, as the server takes it.
    let key = args.api_key.as_deref().map(|key| key.split_once(':').map_or(key, |(_, key)| key));
    let (status, _) = ask_server(&url, key, None).map_err(|error| Error::work(error.to_string()))?;
    match status {
        200 => {
            print_line!("{}", if args.ready { "ready" } else { "ok" })?;
            Ok(Outcome::Done)
        }
        401 => Err(Error::call(format!("{url} needs an API key; give GIRIH_API_KEY or --api-key"))),
        503 => {
            print_line!("not ready")?;
            Ok(Outcome::Failed)
        }
        other => Err(Error::work(format!("{url} answers {other}; it is no server of girih"))),
    }
}
