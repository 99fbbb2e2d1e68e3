//! The options of a server's safety and of what it tells of its work.

use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use girih::RepetitionRule;
use girih_serve::access::ApiKeys;
use girih_serve::observe::{AccessLog, MetricsCompat, TraceCollector};
use girih_serve::parameters::UnknownParameters;
use girih_serve::{KvEventsAddress, KvEventsOptions, ReplyRules, ServeOptions};

use crate::error::Result;
use crate::output::print_note;
use crate::typed_options::TypedOptions;

/// Who may call a server, and what it tells of its work.
#[derive(Debug, Clone, Args)]
pub struct ServerArgs {
    /// File with one API key a line, KEY or NAME:KEY, that clients must send; other users may not be able to
    /// read it.
    #[arg(long, value_name = "FILE")]
    api_keys: Option<PathBuf>,
    /// API key, KEY or NAME:KEY, that clients must send; other users of this machine can read it unless
    /// GIRIH_API_KEY sets it. May be repeated.
    // Help shows no value that the configuration file sets.
    #[arg(long, value_name = "KEY", hide_default_value = true)]
    api_key: Vec<OsString>,
    /// Allow an address that other machines can reach, without --api-keys.
    #[arg(long)]
    i_know_it_is_open: bool,
    /// Accept this Host header besides the server's own address; without a port, any port. May be repeated.
    #[arg(long, value_name = "NAME[:PORT]")]
    allowed_host: Vec<String>,
    /// Let pages of this origin call the server from a browser, such as http://localhost:3000 or
    /// app://obsidian.md; '*' is every page and needs API keys. May be repeated.
    #[arg(long, value_name = "URL")]
    allowed_origin: Vec<String>,
    /// PEM file with the server's certificate and those that sign it: serve TLS.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's private key; other users may not be able to read it.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// What happens to a request with a parameter that girih does not know.
    #[arg(long, value_name = "WHAT", value_enum, default_value = "refuse")]
    unknown_parameters: UnknownName,
    /// Keep lines that begin with x-anthropic-billing-header: in system prompts of /v1/messages, which differ in
    /// each request and so keep prompts from being cached.
    #[arg(long)]
    keep_header_lines: bool,
    /// End a model's thinking after this number of tokens, in the model's own form, so that its answer begins; a request
    /// may ask for less.
    #[arg(long, value_name = "TOKENS")]
    thinking_budget: Option<u32>,
    /// End a reply whose last TOKENS × TIMES tokens repeat the same TOKENS or fewer; 64:8 is a good value.
    #[arg(long, value_name = "TOKENS:TIMES", value_parser = repetition)]
    stop_loops: Option<RepetitionRule>,
    /// Run without the sandbox (Landlock and seccomp), which restricts files, sockets and processes.
    #[arg(long)]
    no_sandbox: bool,
    /// Also report metrics under the names of another server.
    #[arg(long, value_name = "NAME", value_enum)]
    metrics_compat: Option<CompatName>,
    /// Publish which tokens the KV cache has, for routers: a ZeroMQ socket with vLLM's events, such as
    /// tcp://127.0.0.1:5557. Anyone who can connect reads the tokens of all prompts.
    #[arg(long, value_name = "ADDRESS")]
    kv_events: Option<KvEventsAddress>,
    /// Send events again to subscribers that have missed some, at this address.
    #[arg(long, value_name = "ADDRESS", requires = "kv_events")]
    kv_events_replay: Option<KvEventsAddress>,
    /// What routers call this server in the topics of events; without it, its address and port.
    #[arg(long, value_name = "NAME", requires = "kv_events")]
    kv_events_pod: Option<String>,
    /// Allow addresses for events that other machines can reach.
    #[arg(long, requires = "kv_events")]
    kv_events_open: bool,
    /// Log each request as a line of JSON on standard error, without the text of prompts.
    #[arg(long)]
    access_log: bool,
    /// Add the bodies of requests to the access log, up to 64 KiB each.
    #[arg(long, requires = "access_log")]
    log_prompts: bool,
    /// Send traces of requests to an OpenTelemetry collector, by OTLP over HTTP, such as
    /// http://127.0.0.1:4318 (in programs built with --features otlp).
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
}

/// The values of `--metrics-compat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CompatName {
    /// vLLM's names
    Vllm,
}

/// The values of `--unknown-parameters`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum UnknownName {
    /// status 400 names it
    Refuse,
    /// it has no effect; the header x-girih-without-effect and a warning name it
    Warn,
}

/// Reads `TOKENS:TIMES`.
fn repetition(text: &str) -> std::result::Result<RepetitionRule, String> {
    let numbers =
        text.split_once(':').and_then(|(tokens, times)| Some((tokens.parse().ok()?, times.parse().ok()?)));
    let (tokens, times) = numbers.ok_or("it must be TOKENS:TIMES, such as 64:8")?;
    let rule = RepetitionRule { tokens, times };
    rule.check().map_err(|error| error.to_string())?;
    Ok(rule)
}

impl ServerArgs {
    /// `options` with these.
    ///
    /// # Errors
    /// When the file of keys cannot be read, a key is none, or the collector of traces cannot be used.
    pub fn applied(&self, options: ServeOptions) -> Result<ServeOptions> {
        let log = self.access_log.then(|| AccessLog::new(io::stderr(), self.log_prompts));
        Ok(ServeOptions {
            api_keys: ApiKeys::of(self.api_keys.as_deref(), &self.api_key)?,
            is_known_to_be_open: self.i_know_it_is_open,
            allowed_hosts: self.allowed_host.clone(),
            allowed_origins: self.allowed_origin.clone(),
            tls: self.tls_cert.clone().zip(self.tls_key.clone()),
            metrics_compat: self.metrics_compat.map(|CompatName::Vllm| MetricsCompat::Vllm),
            kv_events: self.kv_events.map(|address| KvEventsOptions {
                address,
                replay: self.kv_events_replay,
                pod: self.kv_events_pod.clone(),
                is_known_to_be_open: self.kv_events_open,
            }),
            access_log: log,
            unknown_parameters: match self.unknown_parameters {
                UnknownName::Refuse => UnknownParameters::Refuse,
                UnknownName::Warn => UnknownParameters::Warn,
            },
            keeps_header_lines: self.keep_header_lines,
            reply_rules: ReplyRules { max_thinking: self.thinking_budget, repetition: self.stop_loops },
            notice: |sentence| print_note(sentence),
            collector: self.otlp.as_deref().map(TraceCollector::at).transpose()?,
            ..options
        })
    }

    /// Whether the process gives up what it does not need.
    pub fn is_confined(&self) -> bool {
        !self.no_sandbox
    }

    /// How addresses begin.
    pub fn scheme(&self) -> &'static str {
        if self.tls_cert.is_some() { "https" } else { "http" }
    }

    /// What the user should know of a server at `host` with these `typed` options.
    pub fn notes(&self, host: IpAddr, typed: &TypedOptions) -> impl Iterator<Item = &'static str> {
        let is_exposed = !host.to_canonical().is_loopback() && self.tls_cert.is_none();
        let warning = is_exposed.then_some(
            "warning: keys, prompts and replies cross the network unencrypted; give --tls-cert and --tls-key, or put \
             a proxy with TLS in front",
        );
        let is_nameless = host.to_canonical().is_unspecified() && self.allowed_host.is_empty();
        let names = is_nameless.then_some(
            "requests to other names than localhost get status 421, addresses pass; give --allowed-host for each name \
             that clients use",
        );
        let key = typed.has("api-key").then_some(
            "warning: other users of this machine can read --api-key in its list of processes; use --api-keys FILE or \
             the variable GIRIH_API_KEY",
        );
        warning.into_iter().chain(names).chain(key)
    }
}
