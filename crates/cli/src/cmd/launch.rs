//! `girih launch`: what an agent needs to use a server of girih, after a check that the server can serve it.

mod agent;

use std::ffi::OsString;
use std::process::Command;

use girih_file::{quote, shorten};
use girih_hub::ask_server;
use serde_json::{Value, json};

use super::outcome::Outcome;
use crate::error::{Error, Result};
use crate::output::print_json;
use agent::{AgentSetup, LaunchedAgent, ServedAgentModel};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Agent that is to use the server.
    #[arg(value_name = "AGENT", value_enum)]
    agent: LaunchedAgent,
    /// Address of the server.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// Id of the model in the server's APIs [default: its first].
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// API key of the server; other users of this machine can read it unless GIRIH_API_KEY sets it.
    #[arg(long, value_name = "KEY", hide_default_value = true)]
    api_key: Option<String>,
    /// Start the agent with these settings; they hold for its process only.
    #[arg(long)]
    run: bool,
    /// Print JSON: the program, the variables and the arguments.
    #[arg(long, conflicts_with = "run")]
    json: bool,
    /// Further arguments of the agent, with --run.
    #[arg(last = true, value_name = "ARGUMENT", requires = "run")]
    arguments: Vec<OsString>,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let url = args.url.trim_end_matches('/').trim_end_matches("/v1");
    // A key may have a name, `NAME:KEY`, as the server takes it.
    let key = args.api_key.as_deref().map(|key| key.split_once(':').map_or(key, |(_, key)| key));
    let model = checked_model(args, url, key)?;
    let setup = args.agent.setup(url, key.unwrap_or("girih"), &model);
    if args.run {
        return start(&setup, &args.arguments);
    }
    if args.json {
        let variables: Value = setup.variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        print_json(&json!({"program": setup.program, "variables": variables, "arguments": setup.arguments}))?;
        return Ok(Outcome::Done);
    }
    for (name, value) in &setup.variables {
        print_line!("export {name}={}", shell_word(value))?;
    }
    let words = setup.arguments.iter().map(|argument| format!(" {}", shell_word(argument)));
    print_line!("{}{}", setup.program, words.collect::<String>())?;
    Ok(Outcome::Done)
}

/// The model, after a check that the server answers, that the context holds the agent's prompt and that the model calls
/// tools.
fn checked_model(args: &Args, url: &str, key: Option<&str>) -> Result<ServedAgentModel> {
    let list = asked(&format!("{url}/v1/models"), key, None)?;
    let models = list["data"].as_array().cloned().unwrap_or_default();
    let is_it = |model: &&Value| args.model.as_deref().is_none_or(|name| model["id"] == name);
    let Some(model) = models.iter().find(is_it) else {
        let names: Vec<&str> = models.iter().filter_map(|model| model["id"].as_str()).collect();
        let wanted = quote(args.model.as_deref().unwrap_or_default());
        return Err(Error::call(format!(
            "{url} serves no model {wanted}; it has {}",
            shorten(names.join(", "))
        )));
    };
    let name = model["id"].as_str().unwrap_or_default().to_owned();
    let context = model["max_model_len"].as_u64().unwrap_or_default();
    let (agent, needed) = (args.agent.name(), args.agent.context());
    if context < needed {
        return Err(Error::call(format!(
            "{} has a context of {context} tokens, and {agent} needs {needed}: serve it with --context {needed}",
            quote(&name)
        )));
    }
    let shown = asked(&format!("{url}/api/show"), key, Some(&json!({"model": name})))?;
    let calls = shown["capabilities"].as_array().is_some_and(|all| all.iter().any(|one| one == "tools"));
    if !calls {
        return Err(Error::call(format!(
            "{} does not call tools, which {agent} needs: serve a model whose chat template has tools",
            quote(&name)
        )));
    }
    Ok(ServedAgentModel { name, context })
}

/// The server's answer.
fn asked(url: &str, key: Option<&str>, body: Option<&Value>) -> Result<Value> {
    let body = body.map(Value::to_string);
    let (status, text) = ask_server(url, key, body.as_deref())
        .map_err(|error| Error::work(format!("{error}; start it with `girih serve`, or give --url")))?;
    if status == 401 {
        return Err(Error::call(format!("{url} needs an API key; give GIRIH_API_KEY or --api-key")));
    }
    let answer: Value = serde_json::from_str(&text).unwrap_or_default();
    if status != 200 {
        let error = &answer["error"];
        let why = error["message"].as_str().or(error.as_str()).unwrap_or("the answer is none of girih");
        return Err(Error::work(format!("{url} answers {status}: {}", shorten(why))));
    }
    Ok(answer)
}

/// Starts an agent, waits for its end, and fails if it fails.
fn start(setup: &AgentSetup, arguments: &[OsString]) -> Result<Outcome> {
    let mut command = Command::new(setup.program);
    command.envs(setup.variables.iter().map(|(name, value)| (*name, value)));
    let ended = command.args(&setup.arguments).args(arguments).status();
    let status = ended.map_err(|error| {
        Error::work(format!("{} cannot be started: {error}; install it, or omit --run", setup.program))
    })?;
    Ok(if status.success() { Outcome::Done } else { Outcome::Failed })
}

/// A text as one word of a shell.
fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,+".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_shell_are_quoted() {
        for (text, word) in
            [("a/b:1", "a/b:1"), ("", "''"), ("a b", "'a b'"), ("it's", r"'it'\''s'"), ("$x", "'$x'")]
        {
            assert_eq!(shell_word(text), word);
        }
    }
}
