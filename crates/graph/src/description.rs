//! A backend's description of itself, from which a program makes flags and help, and
//! the choice of a backend with its options.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use girih_tensor::{Error, ErrorKind, Result};

use crate::backend::{Backend, HostWork, Refusal, RowSource, WeightSource};
use crate::graph::{Graph, Key};
use crate::memory_plan::MemoryPlan;
use crate::numerics::Numerics;
use crate::runner::{Runner, load, load_fixed};
use crate::store::{Store, StoreOptions};

/// Describes a backend to programs: name, devices, options. Each backend crate exports one
/// as `INFO`.
pub struct BackendInfo {
    /// The name, such as `cpu`.
    pub name: &'static str,
    /// One line for help.
    pub about: &'static str,
    /// Finds its devices on this machine with these options, such as the path of a library. A choice of the
    /// backend names one of them.
    pub devices: fn(&BackendSettings) -> Result<Vec<BackendDevice>>,
    /// Its options.
    pub options: &'static [BackendOption],
    /// The options that give the most exact results; empty if no option affects rounding.
    pub exact: &'static [(&'static str, &'static str)],
    /// The files of its driver.
    pub driver: DriverFiles,
    /// Whether its times are those of a simulation.
    pub is_simulated: bool,
    /// Sentences that users of its results should know.
    pub notes: &'static [&'static str],
    /// Makes the backend. This neither starts threads nor writes files, so a program may
    /// open a backend only to plan with it.
    pub open: OpenBackend,
}

/// A device of a backend, as found on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendDevice {
    /// What follows `backend:`, such as `strix` or `vulkan:0`; `None` for the device that is meant without a name.
    pub name: Option<String>,
    /// What it is, such as the name of the product.
    pub about: String,
    /// What it was found with, such as the version of a driver: name and value, for people.
    pub settings: Vec<(&'static str, String)>,
}

impl BackendDevice {
    /// The device of a backend that has no other.
    pub fn only(about: impl Into<String>) -> BackendDevice {
        BackendDevice { about: about.into(), ..BackendDevice::default() }
    }
}

/// What a backend's driver uses beside the system's libraries, `/proc` and `/sys`, so that a confined process may use it, too. Paths
/// that do not exist count for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverFiles {
    /// Files and folders that are read.
    pub read: &'static [&'static str],
    /// Options that name a folder or file that is read; of a file, its whole folder.
    pub options: &'static [&'static str],
    /// Devices that are read, written and controlled, and folders of such; `*` at the end stands for any further letters.
    pub devices: &'static [&'static str],
}

impl DriverFiles {
    /// Those of a backend without a driver.
    pub const NONE: DriverFiles = DriverFiles { read: &[], options: &[], devices: &[] };
}

/// Makes a backend with these settings, which may use these services.
pub type OpenBackend = fn(&BackendSettings, &Arc<dyn Services>) -> Result<Box<dyn AnyBackend>>;

impl fmt::Debug for BackendInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendInfo").field("name", &self.name).finish_non_exhaustive()
    }
}

/// An option of a backend.
#[derive(Clone, Copy, Debug)]
pub struct BackendOption {
    /// The name, such as `act-precision`.
    pub name: &'static str,
    /// The name of the value in help, such as `PRECISION`.
    pub placeholder: &'static str,
    /// One sentence for help, with the default in brackets.
    pub help: &'static str,
    /// The valid values.
    pub values: AllowedValues,
    /// Whether it may be given several times.
    pub repeats: bool,
}

/// The valid values of an option.
#[derive(Clone, Copy, Debug)]
pub enum AllowedValues {
    /// One of these names.
    OneOf(fn() -> Vec<&'static str>),
    /// `on` or `off`; a flag without a value is `on`.
    Switch,
    /// A text that passes this check, whose error is a clause that follows the value, such as
    /// `must be 1 or more`.
    Checked(fn(&str) -> Result<(), String>),
}

/// The values of [`AllowedValues::Switch`].
pub const SWITCH: [&str; 2] = ["on", "off"];

impl BackendOption {
    /// The precision to which activations are rounded before matmuls, with the names of those that a backend has: backends
    /// that share an option describe it alike.
    pub const fn act_precision(names: fn() -> Vec<&'static str>) -> BackendOption {
        BackendOption {
            name: "act-precision",
            placeholder: "PRECISION",
            help: "Precision to which activations are rounded before matmuls; with int8 and int8x2, float weights \
                still use f32 activations; int8x2 is two int8 terms, about 15 bits; fp16 and fp8 mostly show \
                their error; a GPU has f32 and int8 [default: int8 for quantized weights; bf16 for BF16 weights on AMD \
                Zen 4 and 5, but not in verify, diagnose and perplexity; else f32]",
            values: AllowedValues::OneOf(names),
            repeats: false,
        }
    }

    /// Checks a value. The error is a clause, as in [`AllowedValues::Checked`].
    fn check(&self, value: &str) -> Result<(), String> {
        match self.values {
            AllowedValues::OneOf(names) if names().contains(&value) => Ok(()),
            AllowedValues::OneOf(names) => Err(format!("must be one of {}", names().join(", "))),
            AllowedValues::Switch if SWITCH.contains(&value) => Ok(()),
            AllowedValues::Switch => Err(format!("must be {}", SWITCH.join(" or "))),
            AllowedValues::Checked(check) => check(value),
        }
    }
}

/// The error of an option of `backend`; `clause` follows the value.
fn invalid_value(backend: &str, option: &str, value: &str, clause: &str) -> Error {
    let sentence = format!("option '{option}' of the {backend} backend: '{value}' {clause}");
    Error::with_kind(ErrorKind::Refused, sentence)
}

/// What decides how a backend rounds where no option does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultRounding {
    /// The machine's model: a backend may round more where that is faster.
    #[default]
    ByProcessor,
    /// Nothing: a backend rounds alike on every processor. This is for programs that measure a model.
    Fixed,
}

/// The device and the options with which a backend is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendSettings {
    /// The name of the backend, for errors.
    backend: &'static str,
    /// The device, if the backend has several.
    pub device: Option<String>,
    /// The number of threads on the host, or the backend's default.
    pub threads: Option<usize>,
    /// What decides the rounding that no option sets.
    pub default_rounding: DefaultRounding,
    options: Vec<(&'static str, String)>,
}

impl BackendSettings {
    /// The last value of an option.
    pub fn get(&self, option: &str) -> Option<&str> {
        self.all(option).last()
    }

    /// All values of an option, in order.
    pub fn all(&self, option: &str) -> impl Iterator<Item = &str> {
        self.options.iter().filter(move |(name, _)| *name == option).map(|(_, value)| value.as_str())
    }

    /// Whether an option that is a switch is on.
    pub fn is_on(&self, option: &str) -> bool {
        self.get(option) == Some(SWITCH[0])
    }

    /// The last value of an option, parsed. The error of `parse` is a clause, as in
    /// [`AllowedValues::Checked`].
    ///
    /// # Errors
    /// When `parse` fails; the error names the option.
    pub fn parsed<T>(
        &self,
        option: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>> {
        let invalid = |value, clause: String| invalid_value(self.backend, option, value, &clause);
        let parse = |value| parse(value).map_err(|clause| invalid(value, clause));
        self.get(option).map(parse).transpose()
    }
}

/// A choice of a backend, with its device and its options; all of them have been checked.
#[derive(Clone, Debug)]
pub struct BackendChoice {
    info: &'static BackendInfo,
    settings: BackendSettings,
}

impl BackendChoice {
    /// Finds the backend of `name` or `name:device` in a list. Whether there is such a device depends on
    /// options, so [`BackendChoice::device`] and [`BackendChoice::open`] find out.
    ///
    /// # Errors
    /// When the backend does not exist.
    pub fn parse(list: &[&'static BackendInfo], text: &str) -> Result<BackendChoice> {
        let (name, device) = match text.split_once(':') {
            Some((name, device)) => (name, Some(device.to_owned())),
            None => (text, None),
        };
        let Some(info) = list.iter().find(|info| info.name == name) else {
            let known: Vec<&str> = list.iter().map(|info| info.name).collect();
            let known = known.join(", ");
            return Err(Error::with_kind(
                ErrorKind::NotFound,
                format!("unknown backend '{text}': use one of {known}"),
            ));
        };
        let settings = BackendSettings { backend: info.name, device, ..BackendSettings::default() };
        Ok(BackendChoice { info, settings })
    }

    /// Finds the chosen device on this machine.
    ///
    /// # Errors
    /// When there is none of this name, or the backend cannot list its devices. The error lists those that
    /// there are.
    pub fn device(&self) -> Result<BackendDevice> {
        let devices = (self.info.devices)(&self.settings)?;
        if let Some(device) = devices.iter().find(|device| device.name == self.settings.device) {
            return Ok(device.clone());
        }
        let name = self.info.name;
        let full = |device: &BackendDevice| match &device.name {
            Some(device) => format!("{name}:{device}"),
            None => name.to_owned(),
        };
        let fault = match &self.settings.device {
            None => format!("the {name} backend needs a device"),
            Some(device) => format!("the {name} backend has no device '{device}'"),
        };
        let known: Vec<String> = devices.iter().map(full).collect();
        let known = if known.is_empty() {
            "there is none".to_owned()
        } else {
            format!("use one of {}", known.join(", "))
        };
        let sentence = format!("unknown backend '{self}': {fault}; {known}");
        Err(Error::with_kind(ErrorKind::NotFound, sentence))
    }

    /// Sets an option; one that repeats gets another value.
    ///
    /// # Errors
    /// When the backend has no such option, or the value is not valid.
    pub fn with(mut self, option: &str, value: &str) -> Result<BackendChoice> {
        let Some(spec) = self.info.options.iter().find(|spec| spec.name == option) else {
            let name = self.info.name;
            return Err(Error::with_kind(
                ErrorKind::Refused,
                format!("the {name} backend has no option '{option}': omit it"),
            ));
        };
        spec.check(value).map_err(|clause| invalid_value(self.info.name, spec.name, value, &clause))?;
        if !spec.repeats {
            self.settings.options.retain(|(name, _)| *name != spec.name);
        }
        self.settings.options.push((spec.name, value.to_owned()));
        Ok(self)
    }

    /// This choice without an option.
    #[must_use]
    pub fn without(mut self, option: &str) -> BackendChoice {
        self.settings.options.retain(|(name, _)| *name != option);
        self
    }

    /// Sets the number of threads on the host.
    #[must_use]
    pub fn with_threads(mut self, threads: Option<usize>) -> BackendChoice {
        self.settings.threads = threads;
        self
    }

    /// Sets what decides the rounding that no option sets.
    #[must_use]
    pub fn with_default_rounding(mut self, default_rounding: DefaultRounding) -> BackendChoice {
        self.settings.default_rounding = default_rounding;
        self
    }

    /// Returns this choice with only its most exact options set, and those that name its driver, for use as a
    /// reference. A backend that lists none keeps its options.
    ///
    /// # Errors
    /// When [`BackendInfo::exact`] names options that the backend does not have.
    pub fn reference(&self) -> Result<BackendChoice> {
        if self.info.exact.is_empty() {
            return Ok(self.clone());
        }
        let mut settings = self.settings.clone();
        settings.options.retain(|(name, _)| self.info.driver.options.contains(name));
        let plain = BackendChoice { info: self.info, settings };
        self.info.exact.iter().try_fold(plain, |choice, (option, value)| choice.with(option, value))
    }

    /// The backend's description.
    pub fn info(&self) -> &'static BackendInfo {
        self.info
    }

    /// The device and the options.
    pub fn settings(&self) -> &BackendSettings {
        &self.settings
    }

    /// Makes the backend.
    ///
    /// # Errors
    /// When there is no such device, options contradict each other, or the machine cannot run it.
    pub fn open(&self, services: &Arc<dyn Services>) -> Result<Box<dyn AnyBackend>> {
        self.device()?;
        (self.info.open)(&self.settings, services)
    }
}

impl fmt::Display for BackendChoice {
    /// `name` or `name:device`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.info.name)?;
        self.settings.device.iter().try_for_each(|device| write!(f, ":{device}"))
    }
}

/// The units of sizes with their bytes: powers of 1024, and powers of 1000.
const SIZE_UNITS: [(&str, u64); 8] = [
    ("tib", 1 << 40),
    ("gib", 1 << 30),
    ("mib", 1 << 20),
    ("kib", 1 << 10),
    ("tb", 1_000_000_000_000),
    ("gb", 1_000_000_000),
    ("mb", 1_000_000),
    ("kb", 1000),
];

/// Parses the value of an option that is a size: a number of bytes, or a number with a unit such as
/// `5GB` or `1.5GiB`. A part of a byte is dropped. The error is a clause, as in
/// [`AllowedValues::Checked`].
///
/// # Errors
/// When it is no such size, or does not fit into 64 bits.
pub fn byte_count(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let unit = SIZE_UNITS.iter().find_map(|(name, bytes)| Some((lower.strip_suffix(name)?, *bytes)));
    let (number, unit) = unit.unwrap_or((lower.strip_suffix('b').unwrap_or(&lower), 1));
    let bytes = size_in(number.trim_end(), unit);
    bytes.ok_or_else(|| "must be a size, such as 5GB, 5GiB or a number of bytes".to_owned())
}

/// Parses the value of an option that is numbers from 1 to `max`, separated by commas. The error is a clause, as in
/// [`AllowedValues::Checked`].
///
/// # Errors
/// When it is no such list.
pub fn numbers(text: &str, max: u32) -> Result<Vec<u32>, String> {
    let number = |word: &str| match word.parse() {
        Ok(number) if (1..=max).contains(&number) => Ok(number),
        _ => Err(format!("must be numbers from 1 to {max}, separated by commas")),
    };
    text.split(',').map(number).collect()
}

/// A decimal number of units, in bytes.
fn size_in(number: &str, unit: u64) -> Option<u64> {
    /// More digits after the point than any unit can resolve.
    const DIGITS: usize = 12;
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    // Bytes have no parts.
    let has_part = number.contains('.');
    if !is_number(whole) || !is_number(part) || part.len() > DIGITS || (has_part && unit == 1) {
        return None;
    }
    let scale = 10_u128.pow(part.len() as u32);
    let (whole, part): (u128, u128) = (whole.parse().ok()?, part.parse().ok()?);
    let scaled = whole.checked_mul(scale)?.checked_add(part)?.checked_mul(unit.into())?;
    u64::try_from(scaled / scale).ok()
}

/// What a program offers the backends that it opens; no backend reads the environment.
pub trait Services: Send + Sync {
    /// The folder for files that backends keep between runs, if there is one.
    fn cache(&self) -> Option<PathBuf>;
    /// A store, in the folder `name` of the cache, for what is derived from the weights of
    /// the model that is loaded; `None` if there is no cache or nothing may be kept.
    fn store(&self, name: &str, options: StoreOptions) -> Option<Box<dyn Store>>;
    /// Tells the user a sentence.
    fn note(&self, sentence: &str);
    /// The rows of the table of a name, if it may stay in its file while programs run.
    fn rows(&self, _: &str) -> Option<Arc<dyn RowSource>> {
        None
    }
}

/// A program that offers nothing: no cache, and notes are dropped.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoServices;

impl Services for NoServices {
    fn cache(&self) -> Option<PathBuf> {
        None
    }

    fn store(&self, _: &str, _: StoreOptions) -> Option<Box<dyn Store>> {
        None
    }

    fn note(&self, _: &str) {}
}

/// A type-erased [`Backend`], implemented for every backend.
pub trait AnyBackend: Send {
    /// See [`Backend::kernels`].
    fn kernels(&self) -> String;
    /// See [`Backend::describe`].
    fn describe(&self, graph: &Graph) -> String;
    /// See [`Backend::refuses`].
    fn refuses(&self, graph: &Graph) -> Vec<Refusal>;
    /// See [`Backend::host_work`].
    fn host_work(&self, graph: &Graph) -> Vec<HostWork>;
    /// See [`Backend::numerics`].
    fn numerics(&self, graph: &Graph) -> Numerics;
    /// See [`Backend::machine_default`].
    fn machine_default(&self, graph: &Graph) -> Option<String>;
    /// See [`Backend::ladder`].
    fn ladder(&self, largest: Key) -> Vec<Key>;
    /// See [`Backend::leave_experts`].
    ///
    /// # Errors
    /// As there.
    fn leave_experts(&mut self) -> Result<()>;
    /// See [`Backend::plan`].
    fn plan(&self, graph: &Graph, blocks: &[u32]) -> MemoryPlan;
    /// See [`load`].
    ///
    /// # Errors
    /// As [`load`].
    fn load(
        self: Box<Self>,
        source: &dyn WeightSource,
        max_key: Key,
        blocks: &[u32],
        build: &dyn Fn(Key) -> Result<Graph>,
    ) -> Result<Box<dyn Runner>>;
    /// See [`load_fixed`]. A backend of several parts loads the whole ladder.
    ///
    /// # Errors
    /// As [`load`].
    fn load_fixed(self: Box<Self>, source: &dyn WeightSource, graph: &Graph) -> Result<Box<dyn Runner>> {
        self.load(source, graph.key, &[], &|_| Ok(graph.clone()))
    }
}

impl<B: Backend> AnyBackend for B {
    fn kernels(&self) -> String {
        Backend::kernels(self)
    }

    fn describe(&self, graph: &Graph) -> String {
        Backend::describe(self, graph)
    }

    fn refuses(&self, graph: &Graph) -> Vec<Refusal> {
        Backend::refuses(self, graph)
    }

    fn host_work(&self, graph: &Graph) -> Vec<HostWork> {
        Backend::host_work(self, graph)
    }

    fn numerics(&self, graph: &Graph) -> Numerics {
        Backend::numerics(self, graph)
    }

    fn machine_default(&self, graph: &Graph) -> Option<String> {
        Backend::machine_default(self, graph)
    }

    fn ladder(&self, largest: Key) -> Vec<Key> {
        Backend::ladder(self, largest)
    }

    fn leave_experts(&mut self) -> Result<()> {
        Backend::leave_experts(self)
    }

    fn plan(&self, graph: &Graph, blocks: &[u32]) -> MemoryPlan {
        Backend::plan(self, graph, blocks)
    }

    fn load(
        self: Box<Self>,
        source: &dyn WeightSource,
        max_key: Key,
        blocks: &[u32],
        build: &dyn Fn(Key) -> Result<Graph>,
    ) -> Result<Box<dyn Runner>> {
        load(*self, source, max_key, blocks, build)
    }

    fn load_fixed(self: Box<Self>, source: &dyn WeightSource, graph: &Graph) -> Result<Box<dyn Runner>> {
        load_fixed(*self, source, graph)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interpret;

    static TWO_DEVICES: BackendInfo = BackendInfo {
        name: "other",
        about: "",
        devices: |settings| {
            let named =
                |name: &str| BackendDevice { name: Some(name.to_owned()), ..BackendDevice::default() };
            let tag = settings.get("tag").map(named);
            Ok(["a", "b"].map(named).into_iter().chain(tag).collect())
        },
        options: &[
            BackendOption {
                name: "mode",
                placeholder: "MODE",
                help: "",
                values: AllowedValues::OneOf(|| vec!["fast", "slow"]),
                repeats: false,
            },
            BackendOption {
                name: "tag",
                placeholder: "TEXT",
                help: "",
                values: AllowedValues::Checked(|text| {
                    if text.is_empty() { Err("must not be empty".to_owned()) } else { Ok(()) }
                }),
                repeats: true,
            },
        ],
        exact: &[("mode", "slow")],
        driver: DriverFiles::NONE,
        is_simulated: true,
        notes: &[],
        open: |_, _| Err(Error::new("not opened here")),
    };

    fn choice(text: &str) -> Result<BackendChoice> {
        BackendChoice::parse(&[&interpret::INFO, &TWO_DEVICES], text)
    }

    fn sentence<T: fmt::Debug>(result: Result<T>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn a_backend_is_chosen_by_name_and_device() {
        assert_eq!(choice("interpreter").unwrap().to_string(), "interpreter");
        assert_eq!(choice("other:b").unwrap().to_string(), "other:b");
        assert_eq!(sentence(choice("gpu")), "unknown backend 'gpu': use one of interpreter, other");
        let device = |text| choice(text).unwrap().device();
        assert_eq!(device("interpreter").unwrap().name, None);
        assert_eq!(device("other:b").unwrap().name.as_deref(), Some("b"));
        let unknown = sentence(device("other:c"));
        assert!(unknown.ends_with("has no device 'c'; use one of other:a, other:b"), "{unknown}");
        assert!(sentence(device("other")).contains("needs a device; use one of other:a, other:b"));
        assert!(sentence(device("interpreter:0")).ends_with("has no device '0'; use one of interpreter"));
        assert!(sentence(device("other:")).contains("has no device ''"));
    }

    /// Such as the path of a library that knows a device.
    #[test]
    fn an_option_may_decide_which_devices_there_are() {
        let other = choice("other:vulkan:0").unwrap();
        assert!(other.device().is_err());
        let found = other.with("tag", "vulkan:0").unwrap().device().unwrap();
        assert_eq!(found.name.as_deref(), Some("vulkan:0"));
    }

    #[test]
    fn a_size_has_a_unit_or_is_in_bytes() {
        let sizes = [
            ("0", 0),
            ("1500", 1500),
            ("7b", 7),
            ("5GB", 5_000_000_000),
            ("5GiB", 5 << 30),
            ("5gib", 5 << 30),
            ("1.5GiB", 3 << 29),
            ("0.5 kb", 500),
            ("2MB", 2_000_000),
            ("2MiB", 2 << 20),
            ("1TiB", 1 << 40),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in sizes {
            assert_eq!(byte_count(text), Ok(bytes), "{text}");
        }
        let wrong = [
            "",
            "GB",
            "-1",
            "1.5",
            "1G",
            "1.GB",
            ".5GB",
            "1e9",
            "5GiBs",
            "18446744073709551616",
            "99999999TiB",
        ];
        for text in wrong {
            assert!(byte_count(text).is_err(), "{text}");
        }
    }

    #[test]
    fn options_are_checked() {
        let other = choice("other:a").unwrap();
        let set = other.clone().with("mode", "fast").unwrap().with("mode", "slow").unwrap();
        assert_eq!(set.settings().all("mode").collect::<Vec<_>>(), ["slow"]);
        let set = set.with("tag", "x").unwrap().with("tag", "y").unwrap();
        assert_eq!(set.settings().all("tag").collect::<Vec<_>>(), ["x", "y"]);
        assert_eq!(
            sentence(other.clone().with("mode", "best")),
            "option 'mode' of the other backend: 'best' must be one of fast, slow"
        );
        assert_eq!(
            sentence(other.clone().with("tag", "")),
            "option 'tag' of the other backend: '' must not be empty"
        );
        assert_eq!(sentence(other.with("isa", "x")), "the other backend has no option 'isa': omit it");
        assert_eq!(set.settings().parsed("mode", |text| Ok(text.len())).unwrap(), Some(4));
        assert_eq!(set.settings().parsed("other", |_| Ok(())).unwrap(), None);
        let refused = set.settings().parsed("mode", |_| Err::<(), _>("is too slow".to_owned()));
        assert_eq!(sentence(refused), "option 'mode' of the other backend: 'slow' is too slow");
    }

    #[test]
    fn a_reference_has_the_most_exact_options_or_else_its_own() {
        let set = |choice: BackendChoice| choice.with("mode", "fast").unwrap().with("tag", "x").unwrap();
        let exact = set(choice("other:a").unwrap()).with_threads(Some(3)).reference().unwrap();
        assert_eq!(exact.settings().options, [("mode", "slow".to_owned())]);
        assert_eq!((exact.to_string().as_str(), exact.settings().threads), ("other:a", Some(3)));
        static DRIVEN: BackendInfo =
            BackendInfo { driver: DriverFiles { options: &["tag"], ..TWO_DEVICES.driver }, ..TWO_DEVICES };
        let driven = set(BackendChoice::parse(&[&DRIVEN], "other:b").unwrap()).reference().unwrap();
        let text = |text: &str| text.to_owned();
        assert_eq!(driven.settings().options, [("tag", text("x")), ("mode", text("slow"))]);
        static SAME: BackendInfo = BackendInfo { exact: &[], ..TWO_DEVICES };
        let own = set(BackendChoice::parse(&[&SAME], "other:b").unwrap());
        assert_eq!(own.reference().unwrap().settings(), own.settings());
    }
}
