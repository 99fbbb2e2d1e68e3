//! `girih serve`: serves models over HTTP.

mod model_options;
mod model_version;
mod served_folder;
mod served_names;

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use girih::tools::FreeMemory;
use girih::{Conversation, RunOptions};
use girih_file::quote;
use girih_graph::description::byte_count;
use girih_serve::body_limits::MAX_TEXT_BYTES;
use girih_serve::listener::ListenerLimits;
use girih_serve::{ImageFetcher, ModelChanger, ModelFolder, ServeOptions, ServedModel, Server};
use rustix::io::Errno;

use super::outcome::Outcome;
use crate::adapter_args::AdapterArgs;
use crate::args::{ArchArgs, DeviceArgs, PromptCacheArgs};
use crate::config_file;
use crate::confinement::{self, ServerReads, UsualOptions};
use crate::draft_args::DraftArgs;
use crate::error::{Error, Result};
use crate::image_fetch::FetchProcess;
use crate::images;
use crate::loading;
use crate::model_folder::{FolderModel, OPTIONS_FILE};
use crate::model_name;
use crate::model_store::{ModelStore, PullAccess};
use crate::output::print_note;
use crate::pack_args::PackArgs;
use crate::process_limits;
use crate::server_args::ServerArgs;
use crate::template_args::TemplateArgs;
use crate::typed_options::TypedOptions;
use model_options::ModelOptions;
use served_folder::{OpenFolderModel, ServedFolder};
use served_names::NamedModel;

/// The minimum number of output rows of a step: a prompt whose log-probabilities are asked for advances by
/// as many tokens.
const OUTPUT_ROWS: u32 = 32;

// Steps of fewer rows delay running replies less.
#[derive(Debug, clap::Args)]
#[command(mut_arg("chunk", |chunk| chunk.default_value("128")))]
pub struct Args {
    #[command(flatten)]
    typed: TypedOptions,
    /// Folders, .gguf or .safetensors files, ids in the cache, aliases, or stories260k, or NAME=MODEL for
    /// another id in the APIs; the first one answers requests that name no model.
    #[arg(value_name = "[NAME=]MODEL", required_unless_present = "model_folder")]
    models: Vec<String>,
    /// Folder whose models are served, too: .gguf files and folders with a config.json. Each is loaded by the first
    /// request that names it.
    #[arg(long = "models", value_name = "DIR")]
    model_folder: Option<PathBuf>,
    /// File (TOML) with options of single models: a table for each by its id, whose keys are options of this command, such
    /// as context, kv, chat-template, draft, sequences and unload-idle [default: girih.toml of the folder of --models].
    #[arg(long, value_name = "FILE")]
    model_options: Option<PathBuf>,
    /// Let clients download, copy and delete models in the folder of --models (/api/pull, /api/copy, /api/delete), as long
    /// as it has at most this size.
    #[arg(long, value_name = "SIZE", requires = "model_folder", value_parser = byte_count)]
    allow_pull: Option<u64>,
    /// Download with your access token (HF_TOKEN): clients may then read what only you may.
    #[arg(long, requires = "allow_pull")]
    allow_pull_token: bool,
    /// Id of the model in the APIs; of several models, given once for each in order.
    #[arg(long, value_name = "NAME", alias = "served-model-name")]
    served_name: Vec<String>,
    /// IP address to listen on; 0.0.0.0 is all interfaces.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 is any free one.
    #[arg(long, value_name = "PORT", default_value = "8080")]
    port: u16,
    /// Maximum number of replies of a model that run at once; each has a KV cache of --context tokens.
    #[arg(long, value_name = "N", default_value = "4", alias = "parallel", value_parser = clap::value_parser!(u32).range(1..=1024))]
    sequences: u32,
    /// Maximum number of queued replies of a model; further ones get status 429.
    #[arg(long, value_name = "N", default_value = "64")]
    waiting: u32,
    /// Maximum number of seconds that a request waits until it begins; one that is expected to wait longer, or
    /// has, gets status 429.
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = clap::value_parser!(u64).range(1..))]
    max_wait: u64,
    /// Milliseconds that a step with tokens of prompts should take beside running replies: --chunk is lowered, to 32 at
    /// least, as far as measured steps need (does not affect results); 0 keeps --chunk.
    #[arg(long, value_name = "MS", default_value = "70", value_parser = clap::value_parser!(u64).range(..=60_000))]
    step_time: u64,
    /// Maximum number of replies of one API key that run or wait.
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u32).range(1..))]
    replies_per_key: u32,
    /// Serve no images: image towers are neither planned nor loaded.
    #[arg(long)]
    no_images: bool,
    /// Maximum size of a request with images, which has four bytes for three of an image file; without images, it is 4 MB.
    #[arg(long, value_name = "SIZE", default_value = "64MB", value_parser = byte_count, conflicts_with = "no_images")]
    max_image_body: u64,
    /// Let clients load and unload adapters (LoRA) below this folder while the server runs (/v1/load_lora_adapter).
    #[arg(long, value_name = "DIR")]
    allow_adapters: Option<PathBuf>,
    /// Fetch images that requests name by URL (http, https), from public addresses only.
    #[arg(long, conflicts_with = "no_images")]
    fetch_images: bool,
    /// Memory budget of all loaded models; unused ones are unloaded for a requested one [default: what is
    /// free at the start].
    #[arg(long, value_name = "SIZE", value_parser = byte_count)]
    memory: Option<u64>,
    /// Unload models that were not used for this number of seconds [default: never].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    unload_idle: Option<u64>,
    /// Seconds after SIGINT or SIGTERM for which new requests are served while /ready says 503, so that a router
    /// learns of the end first.
    #[arg(long, value_name = "SECONDS", default_value = "0")]
    drain_delay: u64,
    /// Seconds that running requests have to finish after SIGINT or SIGTERM.
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    drain_timeout: u64,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    arch: ArchArgs,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    pack: PackArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    draft: DraftArgs,
    #[command(flatten)]
    prompts: PromptCacheArgs,
}

impl Args {
    /// The maximum bytes of a body with images.
    fn image_body_bytes(&self) -> Result<usize> {
        if self.max_image_body < MAX_TEXT_BYTES as u64 {
            return Err(Error::call(format!(
                "--max-image-body is {} bytes, less than the {MAX_TEXT_BYTES} of requests without images; raise it, or use \
                 --no-images",
                self.max_image_body
            )));
        }
        let bytes = if self.no_images { 0 } else { self.max_image_body };
        Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
    }
}

/// Serves. `again` reads the arguments of the call with further options.
///
/// # Errors
/// When the call is wrong, a model cannot be served or the address is taken.
pub fn run(
    args: Args,
    again: impl Fn(&[OsString]) -> Result<Args> + Send + Sync + 'static,
) -> Result<Outcome> {
    let show = args.device.show.show();
    let call = Arc::new(ServeCall { args, again: Box::new(again) });
    let args = &call.args;
    let Models { served, folder, usual, reads } = models(&call)?;
    // Before this process gives up what that one needs.
    let access = if args.allow_pull_token { PullAccess::WithToken } else { PullAccess::Public };
    let store = args.model_folder.as_ref().zip(args.allow_pull);
    let store = store.map(|(folder, cap)| ModelStore::start(folder, cap, access)).transpose()?;
    let fetcher = args.fetch_images.then(FetchProcess::start).transpose()?;
    if let Some(folder) = args.allow_adapters.as_ref().filter(|folder| !folder.is_dir()) {
        return Err(Error::call(format!("--allow-adapters: {} is no folder", folder.display())));
    }
    let free = || FreeMemory::now().map(|memory| memory.room());
    let options = ServeOptions {
        host: args.host,
        port: args.port,
        memory: args.memory.or_else(free).unwrap_or(u64::MAX),
        unload_idle: args.unload_idle.map(Duration::from_secs),
        drain_delay: Duration::from_secs(args.drain_delay),
        drain_timeout: Duration::from_secs(args.drain_timeout),
        replies_per_key: args.replies_per_key,
        image_body_bytes: args.image_body_bytes()?,
        folder: folder.clone().map(|folder| folder as Arc<dyn ModelFolder>),
        model_changer: store.map(|store| Arc::new(store) as Arc<dyn ModelChanger>),
        adapter_folder: args.allow_adapters.clone(),
        image_fetcher: fetcher.map(|fetcher| Arc::new(fetcher) as Arc<dyn ImageFetcher>),
        ..ServeOptions::new(served)
    };
    let options = args.server.applied(options)?;
    let limits = match process_limits::raise_open_files() {
        Some(files) => options.limits.within_open_files(files),
        None => options.limits,
    };
    let options = ServeOptions { limits, ..options };
    args.server.notes(args.host, &args.typed).for_each(print_note);
    if limits.connections < ListenerLimits::default().connections {
        let count = limits.connections;
        print_note(format!(
            "at most {count} connections are served at once, as the limit of open files (ulimit -n) is low: raise it"
        ));
    }
    for model in &options.models {
        show.detail(format!("{} is served as {}", model.source, model.name));
    }
    let confinement = args.server.is_confined().then(|| {
        folder.iter().for_each(|folder| folder.confine());
        confinement::of_server(&options.models, usual.as_ref(), &reads)
    });
    let server = Server::listen(ServeOptions { confinement, ..options }).map_err(with_port)?;
    // Before the models are loaded, which takes time, and before the address is told: a program that
    // reads it may end the process.
    let mut signals = server.catch_signals()?;
    if let Some(sentence) = confinement::missing(server.sandbox()) {
        print_note(sentence);
    } else if args.server.is_confined() {
        show.detail("Landlock and seccomp confine this process");
    }
    for address in
        server.kv_events_addresses().into_iter().flat_map(|(events, replay)| [Some(events), replay])
    {
        address.iter().for_each(|address| show.detail(format!("events of the KV cache: tcp://{address}")));
    }
    let Some(server) = server.load_until(&mut signals)? else { return Ok(Outcome::Done) };
    print_line!("listening on {}://{}", args.server.scheme(), server.address())?;
    io::stdout().flush()?;
    server.run_until(signals);
    Ok(Outcome::Done)
}

/// The models of a server, and the folder that has some of them.
struct Models {
    served: Vec<ServedModel>,
    folder: Option<Arc<ServedFolder>>,
    /// The options of models that the folder may get.
    usual: Option<UsualOptions>,
    /// What their options name beside them.
    reads: ServerReads,
}

/// Reads the arguments of the call again, with further options.
type Again = Box<dyn Fn(&[OsString]) -> Result<Args> + Send + Sync>;

/// The arguments of a call, and those of each model.
struct ServeCall {
    args: Args,
    again: Again,
}

impl ServeCall {
    /// Opens a model with the arguments of the call and its own `options`.
    fn opened(&self, model: &NamedModel<'_>, options: &ModelOptions) -> Result<CheckedModel> {
        let own = options.words(&model.name);
        if own.is_empty() {
            return opened(&self.args, model, None);
        }
        let args = (self.again)(&own).map_err(|error| options.place(&model.name, &error))?;
        let idle = args.unload_idle.filter(|_| options.has(&model.name, "unload-idle"));
        opened(&args, model, idle.map(Duration::from_secs))
    }

    /// The options of a model that the folder may get, unless it has options of its own.
    fn usual(&self) -> Result<UsualOptions> {
        let ServeCall { args: Args { device, arch, pack, template, prompts, .. }, .. } = self;
        let run = RunOptions { prompt_cache: prompts.cache(), ..loading::options(device)? };
        Ok(UsualOptions {
            open: loading::open_options_for_chat("", &pack.applied(arch.clone()), template)?,
            run,
        })
    }

    /// The file of options of models, if there is one.
    fn options_file(&self) -> Option<PathBuf> {
        let usual = self.args.model_folder.as_ref().map(|folder| folder.join(OPTIONS_FILE));
        self.args.model_options.clone().or(usual.filter(|file| file.exists()))
    }
}

/// The models of the command line, under their names in the APIs, and those of a folder.
fn models(call: &Arc<ServeCall>) -> Result<Models> {
    let args = &call.args;
    let file = call.options_file();
    let options = file.as_deref().map(ModelOptions::read).transpose()?.unwrap_or_default();
    let named = served_names::named(&args.models, &args.served_name)?;
    if !args.adapters.is_empty() && named.len() > 1 {
        let count = named.len();
        return Err(Error::call(format!(
            "--adapter is for one model, and {count} are served: set adapter in the file of --model-options"
        )));
    }
    let models: Vec<CheckedModel> =
        named.iter().map(|model| call.opened(model, &options)).collect::<Result<_>>()?;
    let replying = models.iter().filter(|model| !model.is_encoder).count();
    if args.template.has_template() && replying > 1 {
        return Err(Error::call(format!(
            "--chat-template is for one model, and {replying} are served: put chat_template.jinja into each folder"
        )));
    }
    let mut reads = ServerReads::default();
    models.iter().for_each(|model| model.note_reads(&mut reads));
    let mut served: Vec<ServedModel> = models.into_iter().map(|model| model.served).collect();
    let folder = args.model_folder.clone().map(|folder| served_folder(call, folder, file.clone(), &served));
    let folder = folder.transpose()?;
    if let Some(folder) = &folder {
        served.extend(folder.entries()?.iter().filter_map(|entry| folder.open(entry)));
        if served.is_empty() && args.allow_pull.is_none() {
            let folder = folder.path().display();
            return Err(Error::call(format!(
                "{folder} has no model that can be served; name another folder, or a model, or let clients download \
                 some by --allow-pull SIZE"
            )));
        }
        let ServerReads { models, files } = folder.reads();
        reads.models.extend(models.into_iter().chain([folder.path().to_owned()]));
        // The arguments are read again for models with options of their own.
        reads
            .files
            .extend(files.into_iter().chain(config_file::path()).chain(args.arch.arch.iter().cloned()));
    }
    let usual = folder.is_some().then(|| call.usual()).transpose()?;
    let has = |name: &str| served.iter().any(|model| model.name == name);
    for name in options.models().filter(|name| !has(name)) {
        let file = file.as_deref().unwrap_or(Path::new(OPTIONS_FILE)).display();
        print_note(format!("{file} has options of {}, which is not served", quote(name)));
    }
    reads.files.extend(file);
    reads.models.extend(args.allow_adapters.clone());
    Ok(Models { served, folder, usual, reads })
}

/// The folder of models, beside those that are `served` already.
fn served_folder(
    call: &Arc<ServeCall>,
    folder: PathBuf,
    file: Option<PathBuf>,
    served: &[ServedModel],
) -> Result<Arc<ServedFolder>> {
    if !call.args.adapters.is_empty() {
        return Err(Error::call(
            "--adapter is for one model, and --models serves those of a folder: set adapter in the file of --model-options",
        ));
    }
    if call.args.template.has_template() {
        return Err(Error::call(
            "--chat-template is for one model, and --models serves those of a folder: set chat-template in the file \
             of --model-options",
        ));
    }
    let file = file.unwrap_or_else(|| folder.join(OPTIONS_FILE));
    let taken = served.iter().flat_map(|model| {
        let adapters = model.open_options.adapters.iter().map(|adapter| &adapter.name);
        std::iter::once(&model.name).chain(adapters).cloned()
    });
    let taken = taken.collect();
    let call = Arc::clone(call);
    let open: OpenFolderModel = Box::new(move |FolderModel { name, path }, options| {
        let model = NamedModel { name: name.clone(), source: path };
        let mut model = call.opened(&model, options)?;
        model.served.is_loaded_on_request = true;
        let mut reads = ServerReads::default();
        model.note_reads(&mut reads);
        Ok((!model.is_encoder).then_some((model.served, reads)))
    });
    Ok(Arc::new(ServedFolder::new(folder, file, taken, open)))
}

/// A model that has been opened to check it, as it is served.
struct CheckedModel {
    served: ServedModel,
    is_encoder: bool,
    /// The draft model, as it is named.
    draft: Option<PathBuf>,
    /// The file of its chat template, if that is not its own.
    template: Option<PathBuf>,
    /// The paths of its adapters.
    adapters: Vec<PathBuf>,
}

impl CheckedModel {
    /// Adds what the model needs beside its own files when it is opened again.
    fn note_reads(&self, reads: &mut ServerReads) {
        reads.models.extend(self.draft.iter().chain(&self.adapters).cloned());
        reads.files.extend(self.template.clone());
    }
}

/// An error of listening; if another program has the port, with the option for another one.
fn with_port(error: girih::Error) -> Error {
    let is_taken = error.to_string().contains(&format!("(os error {})", Errno::ADDRINUSE.raw_os_error()));
    let advice = if is_taken { "; --port sets another one, and 0 any free one" } else { "" };
    match Error::from(error) {
        Error::Work(sentence) => Error::Work(sentence + advice),
        error => error,
    }
}

/// Opens a model to check it; the server plans and loads it. It is unloaded when it was not used for
/// `unload_idle`, if that is its own.
fn opened(args: &Args, model: &NamedModel<'_>, unload_idle: Option<Duration>) -> Result<CheckedModel> {
    let name = model.source;
    let arch = args.pack.applied(args.adapters.beside(&args.arch));
    let open = loading::open_for_chat(name, &arch, &args.template)?;
    let is_encoder = open.files().facts.is_encoder();
    if args.template.has_template() && !is_encoder {
        // A template that fails does so before the server listens.
        open.render(&Conversation::new().user("?"))?;
    }
    let options = loading::options_with_prompts(&open, &args.device, &args.prompts, &args.typed)?;
    let (sequences, waiting) = (args.sequences, args.waiting);
    let output_rows = sequences.max(OUTPUT_ROWS);
    let max_wait = Some(Duration::from_secs(args.max_wait));
    let step_time = (args.step_time > 0).then(|| Duration::from_millis(args.step_time));
    let options = RunOptions { sequences, waiting, max_wait, step_time, output_rows, ..options };
    let run_options = if is_encoder {
        options // an encoder drafts nothing
    } else {
        let show = args.device.show.show();
        let plan = |options| args.draft.plan(&open, options, &args.arch, &args.typed, show);
        let plan = match args.no_images {
            true => plan(options)?,
            false => images::plan_if_possible(&open, args.arch.mmproj.as_deref(), options, show, plan)?,
        };
        if let Some(sentence) = plan.machine_default() {
            args.device.show.show().detail(format!("{name}: {sentence}"));
        }
        plan.options().clone()
    };
    let source = model_name::resolved(name)?.into_owned();
    let open_options = loading::open_options_for_chat(&source, &arch, &args.template)?;
    let served = ServedModel {
        name: model.name.clone(),
        source,
        open_options,
        run_options,
        is_loaded_on_request: false,
        unload_idle,
        version: None,
    };
    let draft = args.draft.name_as_given().map(PathBuf::from);
    let adapters = arch.adapters.into_iter().map(|adapter| adapter.path).collect();
    Ok(CheckedModel { served, is_encoder, draft, template: args.template.file().cloned(), adapters })
}
