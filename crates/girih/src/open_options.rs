//! What girih uses from outside the program: the cache folder, the Hugging Face cache, and
//! the process for chat templates.

use std::ffi::OsString;
use std::path::PathBuf;

use girih_graph::Result;
#[cfg(feature = "hub")]
use girih_graph::{Error, ErrorKind};
use girih_model::arch::{Arch, schema};
use girih_tensor::DType;
use girih_words::reply::ReplyStyle;
use girih_words::template::{RenderLimits, Renderer};

/// What girih uses from outside the program: the cache folder, the Hugging Face cache, and the
/// process for chat templates. By default girih reads only the files that it is given and
/// caches nothing.
///
/// ```
/// use girih::OpenOptions;
///
/// // This crate does not read the environment; a program hands over its variables.
/// let options = OpenOptions::from_vars(|name| std::env::var(name).ok());
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The folder of files that speed up the next start, such as packed weights; `None` caches
    /// nothing.
    ///
    /// ```
    /// let options = girih::OpenOptions { cache: Some("/var/cache/girih".into()), ..Default::default() };
    /// # let _ = options;
    /// ```
    pub cache: Option<PathBuf>,
    /// How chat templates are rendered.
    ///
    /// ```
    /// assert_eq!(girih::OpenOptions::default().templates, girih::TemplateProcess::Own);
    /// ```
    pub templates: TemplateProcess,
    /// The process that waits for the disk after packed weights were written.
    ///
    /// ```
    /// assert_eq!(girih::OpenOptions::default().sync, girih::SyncProcess::Own);
    /// ```
    pub sync: SyncProcess,
    /// The source of a chat template that is used instead of the model's own.
    ///
    /// ```
    /// use girih::{BUILT_IN, BUILT_IN_TEMPLATE, Conversation, Model, OpenOptions};
    ///
    /// let options = OpenOptions { chat_template: Some(BUILT_IN_TEMPLATE.into()), ..Default::default() };
    /// let model = Model::open_with(BUILT_IN, &options)?;
    /// let prompt = model.tokenize_conversation(&Conversation::new().user("Once upon a time"))?;
    /// assert_eq!(prompt, model.tokenize("Once upon a time")?);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub chat_template: Option<String>,
    /// The style in which thinking and calls of tools are found in replies, instead of the one that
    /// the chat template teaches. Calls are then found even if the conversation has no tools, as a
    /// system message may describe them.
    ///
    /// ```
    /// use girih::{OpenOptions, ReplyStyle};
    ///
    /// let options = OpenOptions { reply_style: Some(ReplyStyle::named("gemma")?), ..Default::default() };
    /// # let _ = options;
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub reply_style: Option<ReplyStyle>,
    /// The projector file (`mmproj-….gguf`) with the model's image tower. Without one, it is the tower in the model's own
    /// files, or for a GGUF the one projector file beside it.
    ///
    /// ```
    /// let options = girih::OpenOptions { projector: Some("mmproj-F16.gguf".into()), ..Default::default() };
    /// # let _ = options;
    /// ```
    pub projector: Option<PathBuf>,
    /// See [`OpenOptions::architecture`].
    #[doc(hidden)]
    pub architectures: Vec<Arch>,
    /// Adapters (LoRA) beside the model, from which each request may choose one
    /// ([`Request::adapter`](crate::Request::adapter)): folders of PEFT, or GGUF files.
    ///
    /// ```no_run
    /// use girih::{AdapterSource, Model, OpenOptions, Request};
    ///
    /// let poet = AdapterSource { name: "poet".into(), path: "adapters/poet".into() };
    /// let options = OpenOptions { adapters: vec![poet], ..Default::default() };
    /// let session = Model::open_with("Qwen/Qwen3-0.6B", &options)?.start()?;
    /// let reply = session.generate(Request::new("Once upon a time").adapter("poet"))?.text()?;
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub adapters: Vec<AdapterSource>,
    /// Keys of a model that girih ignores, although they may change its numbers: paths in
    /// `config.json` with dots between the levels, or keys of a GGUF. Without them, a model with
    /// a key that girih does not know is refused.
    ///
    /// ```
    /// let options = girih::OpenOptions { allow_key: vec!["logit_scale".into()], ..Default::default() };
    /// let refused = girih::Model::open_with("stories260k", &options).unwrap_err();
    /// assert!(refused.to_string().contains("has no such key"));
    /// ```
    pub allow_key: Vec<String>,
    /// The format as which matrices that the model has in floats are packed when it is loaded; only
    /// [`DType::Q8_0`](crate::DType::Q8_0). They then are what `girih quantize --type q8_0` writes, with the same replies. After
    /// loading, a note tells the error ([`Model::quantization_error`](crate::Model::quantization_error)). Default `None`: weights
    /// are exact.
    ///
    /// ```
    /// use girih::{DType, Model, OpenOptions};
    ///
    /// let options = OpenOptions { pack: Some(DType::Q8_0), ..Default::default() };
    /// let exact = Model::open("stories260k")?.plan(Default::default())?;
    /// let packed = Model::open_with("stories260k", &options)?.plan(Default::default())?;
    /// assert!(packed.memory().total() < exact.memory().total());
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub pack: Option<DType>,
    /// The settings of the Hugging Face cache, in which ids such as `org/name` are found, or
    /// why there are none.
    ///
    /// ```
    /// assert!(girih::OpenOptions::default().hub.is_err());
    /// ```
    #[cfg(feature = "hub")]
    pub hub: Result<girih_hub::HubEnv>,
}

#[allow(clippy::derivable_impls)] // with the feature `hub`, it cannot be derived
impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            cache: None,
            templates: TemplateProcess::default(),
            sync: SyncProcess::default(),
            chat_template: None,
            reply_style: None,
            projector: None,
            architectures: Vec::new(),
            adapters: Vec::new(),
            allow_key: Vec::new(),
            pack: None,
            #[cfg(feature = "hub")]
            hub: Err(Error::with_kind(
                ErrorKind::NotFound,
                "no model cache was given: set OpenOptions::hub, or give the path of a file or folder",
            )),
        }
    }
}

/// An adapter of a model, and the name by which requests choose it.
///
/// ```
/// let poet = girih::AdapterSource { name: "poet".into(), path: "adapters/poet".into() };
/// # let _ = poet;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterSource {
    /// The name; those of a model differ.
    ///
    /// ```
    /// let poet = girih::AdapterSource { name: "poet".into(), path: "adapters/poet".into() };
    /// assert_eq!(poet.name, "poet");
    /// ```
    pub name: String,
    /// A folder with `adapter_config.json` and `adapter_model.safetensors`, or a GGUF file.
    ///
    /// ```
    /// let poet = girih::AdapterSource { name: "poet".into(), path: "poet.gguf".into() };
    /// assert_eq!(poet.path.extension().unwrap(), "gguf");
    /// ```
    pub path: PathBuf,
}

/// The process in which chat templates run. A template is a program that comes with a model.
///
/// A server that loads models of strangers runs templates in a process of its own binary:
///
/// ```no_run
/// use std::process::ExitCode;
///
/// use girih::{OpenOptions, TemplateProcess};
///
/// fn main() -> ExitCode {
///     if std::env::args().nth(1).is_some_and(|argument| argument == "template-worker") {
///         return girih::template_worker();
///     }
///     let program = std::env::current_exe().expect("the program has a path");
///     let templates = TemplateProcess::Worker { program, arguments: vec!["template-worker".into()] };
///     let options = OpenOptions { templates, ..OpenOptions::default() };
///     // Open models with these options.
///     # let _ = options;
///     ExitCode::SUCCESS
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TemplateProcess {
    /// A thread of this process, with limits on time (2 s), recursion and output. Only a worker
    /// process also limits memory, and gives up files, the network and other processes.
    #[default]
    Own,
    /// A process that is started for the first template. It must call
    /// [`template_worker`](crate::template_worker).
    Worker {
        /// The program's path.
        program: PathBuf,
        /// The arguments of the program.
        arguments: Vec<OsString>,
    },
}

/// The process that waits until packed weights are on the disk, and then gives their file its name. A disk
/// takes seconds for gigabytes, and the system keeps a program until its last thread has stopped waiting.
///
/// ```no_run
/// use std::process::ExitCode;
///
/// use girih::{OpenOptions, SyncProcess};
///
/// fn main() -> ExitCode {
///     let mut arguments = std::env::args_os().skip(1);
///     if arguments.next().is_some_and(|argument| argument == "sync-worker") {
///         return girih::sync_worker(arguments);
///     }
///     let program = std::env::current_exe().expect("the program has a path");
///     let sync = SyncProcess::Worker { program, arguments: vec!["sync-worker".into()] };
///     let options = OpenOptions { sync, ..OpenOptions::default() };
///     // Open models with these options.
///     # let _ = options;
///     ExitCode::SUCCESS
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SyncProcess {
    /// This process: dropping a session waits for the disk.
    #[default]
    Own,
    /// A process that is started when a file is written and goes on when this one has ended. It must call
    /// [`sync_worker`](crate::sync_worker).
    Worker {
        /// The program's path.
        program: PathBuf,
        /// The arguments of the program, before those of the worker.
        arguments: Vec<OsString>,
    },
}

impl OpenOptions {
    /// Reads the options from variables, where `get` returns the value of one: those of the
    /// Hugging Face tools, and `XDG_CACHE_HOME` or `HOME` for the cache folder.
    ///
    /// ```
    /// let options = girih::OpenOptions::from_vars(|name| (name == "HOME").then(|| "/srv/ada".to_owned()));
    /// assert_eq!(options.cache, Some("/srv/ada/.cache/girih".into()));
    /// ```
    pub fn from_vars(get: impl Fn(&str) -> Option<String>) -> OpenOptions {
        let set = |name: &str| get(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
        OpenOptions {
            cache: home.map(|home| home.join("girih")),
            #[cfg(feature = "hub")]
            hub: girih_hub::HubEnv::from_vars(&get),
            ..OpenOptions::default()
        }
    }

    /// Adds the description (TOML) of an architecture that girih does not include.
    ///
    /// ```
    /// let refused = girih::OpenOptions::default().architecture("name = 1").unwrap_err();
    /// println!("{refused}");
    /// ```
    ///
    /// # Errors
    /// When the description is malformed.
    pub fn architecture(mut self, description: &str) -> Result<OpenOptions> {
        self.architectures.push(schema::parse(description)?);
        Ok(self)
    }

    /// Returns a renderer of chat templates, for programs that open only a tokenizer
    /// ([`Model::text_processor_of`](crate::Model::text_processor_of)).
    ///
    /// ```
    /// use girih::{Conversation, Model, OpenOptions};
    ///
    /// let options = OpenOptions::default();
    /// let text = Model::text_processor_of("stories260k", &options)?;
    /// let rendered = text.render(&mut options.renderer(), &Conversation::new().user("Hello"));
    /// assert!(rendered.is_err(), "the built-in model has no chat template");
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn renderer(&self) -> Renderer {
        match &self.templates {
            TemplateProcess::Own => Renderer::in_process(RenderLimits::default()),
            TemplateProcess::Worker { program, arguments } => {
                Renderer::new(program.clone(), arguments.clone(), RenderLimits::default())
            }
        }
    }
}
