//! What a server is started with.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use girih::tools::Confinement;

use crate::access::ApiKeys;
use crate::body_limits::MAX_IMAGE_BODY_BYTES;
use crate::image_fetcher::ImageFetcher;
use crate::kv_events::KvEventsOptions;
use crate::listener::ListenerLimits;
use crate::model_changes::ModelChanger;
use crate::model_folder::ModelFolder;
use crate::observe::{AccessLog, MetricsCompat, TraceCollector};
use crate::parameters::UnknownParameters;
use crate::reply_rules::ReplyRules;
use crate::request_hook::RequestHook;
use crate::served_model::ServedModel;

/// What a server is started with.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The models, at least one unless there is a folder. The first one answers requests that name none.
    pub models: Vec<ServedModel>,
    /// A folder whose models are served, too; those that it has at the start are among `models`. Default none.
    pub folder: Option<Arc<dyn ModelFolder>>,
    /// What changes the models of the folder when clients ask for it. Default none: they may not.
    pub model_changer: Option<Arc<dyn ModelChanger>>,
    /// The folder from which clients may load adapters while the server runs. Default none: they may not.
    pub adapter_folder: Option<PathBuf>,
    /// What fetches images that requests name by URL. Default none: URLs are refused.
    pub image_fetcher: Option<Arc<dyn ImageFetcher>>,
    /// The address to listen on. Default 127.0.0.1.
    pub host: IpAddr,
    /// The port to listen on; 0 is any free one. Default 8080.
    pub port: u16,
    /// The keys of clients; without them, everybody may call. Default `None`.
    pub api_keys: Option<ApiKeys>,
    /// Whether an address that other machines can reach may be served without keys. Default false.
    pub is_known_to_be_open: bool,
    /// Further names under which the server is called, `NAME` or `NAME:PORT`, beside its address
    /// and those of loopback. Default none.
    pub allowed_hosts: Vec<String>,
    /// Further origins whose pages may call the server from a browser ([`AllowedOrigins::new`](crate::access::AllowedOrigins::new)). Default none.
    pub allowed_origins: Vec<String>,
    /// The files of the certificates and of the private key for TLS, in PEM. Default `None`.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The maximum bytes of a body with images; what is no image has at most [`MAX_TEXT_BYTES`](crate::body_limits::MAX_TEXT_BYTES)
    /// of them, which is the maximum of other bodies. Default 64 MB.
    pub image_body_bytes: usize,
    /// What connections are allowed.
    pub limits: ListenerLimits,
    /// Further names of the metrics. Default `None`.
    pub metrics_compat: Option<MetricsCompat>,
    /// The log of requests. Default `None`.
    pub access_log: Option<AccessLog>,
    /// Where traces of requests are sent. Default `None`.
    pub collector: Option<TraceCollector>,
    /// How events of the KV cache are published, for routers. Default `None`.
    pub kv_events: Option<KvEventsOptions>,
    /// What the process may still do with files, as the kernel enforces it from the moment that the
    /// address is bound; `None` confines nothing. Default `None`.
    pub confinement: Option<Confinement>,
    /// How long a reply that is complete may be unread before it is dropped, so that it holds no place of
    /// its client any more. Default 60 s.
    pub unread_time: Duration,
    /// The bytes that the loaded models may take together. Default `u64::MAX`.
    pub memory: u64,
    /// Models that were not used for this time are unloaded; `None` keeps them. Default `None`.
    pub unload_idle: Option<Duration>,
    /// How long new requests are served after the server was told to end, while `/ready` says that it is not ready.
    /// Default 0.
    pub drain_delay: Duration,
    /// How long running requests may go on after the server was told to end. Default 30 s.
    pub drain_timeout: Duration,
    /// The maximum number of replies that one API key may have running or waiting. Callers
    /// without keys are bounded only by the queue. Default 8.
    pub replies_per_key: u32,
    /// The threads that read and write connections. They do no arithmetic. Default 1.
    pub io_threads: usize,
    /// Changes requests before they are queued. Default none.
    pub request_hook: Option<RequestHook>,
    /// What happens to a parameter that girih does not know. Default: the request is refused.
    pub unknown_parameters: UnknownParameters,
    /// Whether lines of agents' headers stay in system prompts ([`crate::parameters::LEFT_OUT`]). Default false.
    pub keeps_header_lines: bool,
    /// What holds for all replies. Default: nothing.
    pub reply_rules: ReplyRules,
    /// What is told each sentence that the operator should read, such as that a parameter of a client has no
    /// effect. It has no line end, and is ASCII. Default: nothing.
    pub notice: fn(&str),
}

impl ServeOptions {
    /// The default options for these models.
    pub fn new(models: Vec<ServedModel>) -> ServeOptions {
        ServeOptions {
            models,
            folder: None,
            model_changer: None,
            adapter_folder: None,
            image_fetcher: None,
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 8080,
            api_keys: None,
            is_known_to_be_open: false,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            tls: None,
            image_body_bytes: MAX_IMAGE_BODY_BYTES,
            limits: ListenerLimits::default(),
            metrics_compat: None,
            access_log: None,
            collector: None,
            kv_events: None,
            confinement: None,
            unread_time: Duration::from_secs(60),
            memory: u64::MAX,
            unload_idle: None,
            drain_delay: Duration::ZERO,
            drain_timeout: Duration::from_secs(30),
            replies_per_key: 8,
            io_threads: 1,
            request_hook: None,
            unknown_parameters: UnknownParameters::default(),
            keeps_header_lines: false,
            reply_rules: ReplyRules::default(),
            notice: |_| {},
        }
    }
}
