//! The agents that can be launched, with the settings that their own pages document.

use clap::ValueEnum;
use serde_json::json;

/// An agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LaunchedAgent {
    /// Claude Code (code.claude.com/docs/en/llm-gateway)
    Claude,
    /// Codex (developers.openai.com/codex/config-advanced)
    Codex,
    /// OpenCode (opencode.ai/docs/providers)
    Opencode,
    /// aider (aider.chat/docs/llms/openai-compat.html)
    Aider,
    /// Qwen Code (github.com/QwenLM/qwen-code)
    Qwen,
}

/// A model that an agent uses.
#[derive(Clone, Debug)]
pub struct ServedAgentModel {
    /// Its id in the server's APIs.
    pub name: String,
    /// The tokens of its context.
    pub context: u64,
}

/// What an agent is started with.
#[derive(Clone, Debug)]
pub struct AgentSetup {
    /// Its program.
    pub program: &'static str,
    /// Variables of its environment.
    pub variables: Vec<(&'static str, String)>,
    /// Its arguments.
    pub arguments: Vec<String>,
}

impl LaunchedAgent {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            LaunchedAgent::Claude => "Claude Code",
            LaunchedAgent::Codex => "Codex",
            LaunchedAgent::Opencode => "OpenCode",
            LaunchedAgent::Aider => "aider",
            LaunchedAgent::Qwen => "Qwen Code",
        }
    }

    /// The tokens of context below which it is not started. Prompts of 28,000 tokens were reported of Claude Code; the
    /// others are held to half of its context.
    pub fn context(self) -> u64 {
        match self {
            LaunchedAgent::Claude => 32_768,
            LaunchedAgent::Codex | LaunchedAgent::Opencode | LaunchedAgent::Qwen | LaunchedAgent::Aider => {
                16_384
            }
        }
    }

    /// What it is started with to use a model of the server at `url`.
    pub fn setup(self, url: &str, key: &str, model: &ServedAgentModel) -> AgentSetup {
        let ServedAgentModel { name, context } = model;
        let (base, key) = (format!("{url}/v1"), key.to_owned());
        match self {
            LaunchedAgent::Claude => AgentSetup {
                program: "claude",
                variables: vec![
                    ("ANTHROPIC_BASE_URL", url.to_owned()),
                    ("ANTHROPIC_AUTH_TOKEN", key),
                    // A key of one's own would go to this server instead of the token.
                    ("ANTHROPIC_API_KEY", String::new()),
                    ("ANTHROPIC_MODEL", name.clone()),
                    ("ANTHROPIC_DEFAULT_OPUS_MODEL", name.clone()),
                    ("ANTHROPIC_DEFAULT_SONNET_MODEL", name.clone()),
                    ("ANTHROPIC_DEFAULT_HAIKU_MODEL", name.clone()),
                ],
                arguments: Vec::new(),
            },
            LaunchedAgent::Codex => {
                // A JSON text is a basic string of TOML.
                let text = |value: &str| json!(value).to_string();
                let provider = format!(
                    "model_providers.girih={{name=\"girih\", base_url={}, wire_api=\"responses\", env_key=\"OPENAI_API_KEY\"}}",
                    text(&base)
                );
                let settings = [
                    format!("model={}", text(name)),
                    "model_provider=\"girih\"".to_owned(),
                    format!("model_context_window={context}"),
                    provider,
                ];
                AgentSetup {
                    program: "codex",
                    variables: vec![("OPENAI_API_KEY", key)],
                    arguments: settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]).collect(),
                }
            }
            LaunchedAgent::Opencode => {
                let limits = json!({"context": context, "output": context / 4});
                let models = json!({name: {"name": name, "limit": limits}});
                let provider = json!({
                    "npm": "@ai-sdk/openai-compatible",
                    "name": "girih",
                    "options": {"baseURL": base, "apiKey": key},
                    "models": models,
                });
                let config = json!({"provider": {"girih": provider}, "model": format!("girih/{name}")});
                AgentSetup {
                    program: "opencode",
                    variables: vec![("OPENCODE_CONFIG_CONTENT", config.to_string())],
                    arguments: Vec::new(),
                }
            }
            LaunchedAgent::Aider => AgentSetup {
                program: "aider",
                variables: vec![("OPENAI_API_BASE", base), ("OPENAI_API_KEY", key)],
                arguments: vec!["--model".to_owned(), format!("openai/{name}")],
            },
            LaunchedAgent::Qwen => AgentSetup {
                program: "qwen",
                variables: vec![
                    ("OPENAI_BASE_URL", base),
                    ("OPENAI_API_KEY", key),
                    ("OPENAI_MODEL", name.clone()),
                ],
                arguments: Vec::new(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_name_the_server_and_the_model() {
        let model = ServedAgentModel { name: "org/m\"".to_owned(), context: 40_000 };
        for agent in LaunchedAgent::value_variants() {
            let AgentSetup { program, variables, arguments } =
                agent.setup("http://127.0.0.1:8080", "k", &model);
            let all = format!("{program} {variables:?} {arguments:?}");
            assert!(all.contains("127.0.0.1:8080") && all.contains("org/m"), "{all}");
        }
        let codex = LaunchedAgent::Codex.setup("http://h", "k", &model).arguments;
        assert_eq!(codex[..2], ["-c".to_owned(), r#"model="org/m\"""#.to_owned()]);
        let opencode = LaunchedAgent::Opencode.setup("http://h", "k", &model).variables;
        let config: serde_json::Value = serde_json::from_str(&opencode[0].1).unwrap();
        assert_eq!(config["provider"]["girih"]["models"]["org/m\""]["limit"]["context"], 40_000);
    }
}
