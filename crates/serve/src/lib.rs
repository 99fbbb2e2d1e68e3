//! Serves models over HTTP: requests of OpenAI's, Anthropic's and Ollama's clients become
//! requests of [`girih`], and its events become their replies.
#![forbid(unsafe_code)]

mod page;
