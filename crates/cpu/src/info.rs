//! The backend's description: its options with their help, and how they are parsed.

use std::sync::Arc;

use girih_graph::Result;
use girih_graph::description::{
    AllowedValues, AnyBackend, BackendDevice, BackendInfo, BackendOption, BackendSettings, DefaultRounding,
    DriverFiles, Services, byte_count,
};
use girih_graph::store::StoreOptions;

use crate::activations::{ActivationPrecision, PrecisionRule};
use crate::affinity::Affinity;
use crate::backend::{Cpu, CpuOptions};
use crate::equal_weights::EqualWeights;
use crate::kernels::processor::ProcessorModel;
use crate::kernels::{self, Table};
use crate::memory_policy::MemoryPolicy;
use crate::packed_store::Residence;
use crate::present::ZeroBlocks;
use crate::product_defaults::ProductDefault;
use crate::weights::AwaitPacked;

/// The description of the backend.
pub static INFO: BackendInfo = BackendInfo {
    name: "cpu",
    about: "the host's processor",
    devices: |_| Ok(vec![device()]),
    options: OPTIONS,
    exact: &[(PRECISION, "f32")],
    driver: DriverFiles::NONE,
    is_simulated: false,
    notes: &[],
    open,
};

/// The folder of packed weights in the host's cache.
const STORE: &str = "packed";

const ISA: &str = "isa";
const PRECISION: &str = "act-precision";
const AFFINITY: &str = "affinity";
const PACKED_CACHE: &str = "packed-cache";
const PACKED_CACHE_LIMIT: &str = "packed-cache-limit";
const WEIGHTS: &str = "weights";
const ZERO_BLOCKS: &str = "zero-blocks";
const HOT_REPLICATE: &str = "hot-replicate";
const MEMORY_POLICY: &str = "memory-policy";
const EQUAL_WEIGHTS: &str = "equal-weights";

const OPTIONS: &[BackendOption] = &[
    BackendOption {
        name: ISA,
        placeholder: "ISA",
        help: "Instruction set of the cpu backend's kernels; if it is set, the processor does not decide \
            --act-precision either [default: the best that this processor has]",
        values: AllowedValues::OneOf(|| kernels::names().to_vec()),
        repeats: false,
    },
    BackendOption::act_precision(|| ActivationPrecision::ALL.iter().map(|it| it.name()).collect()),
    BackendOption {
        name: AFFINITY,
        placeholder: "POLICY",
        help: "Pin threads to cores: compact fills one NUMA node after another, scatter spreads them over \
            all nodes, none does not pin, auto is compact if there are several nodes, else none \
            [default: auto]",
        values: AllowedValues::OneOf(|| names(AFFINITIES)),
        repeats: false,
    },
    BackendOption {
        name: PACKED_CACHE,
        placeholder: "MODE",
        help: "Cache packed weights for the next start: on waits until their file is written, auto only if packing took a second \
            [default: auto; on with --weights mmap]",
        values: AllowedValues::OneOf(|| names(CACHE_MODES)),
        repeats: false,
    },
    BackendOption {
        name: PACKED_CACHE_LIMIT,
        placeholder: "SIZE",
        help: "Maximum size of all packed weights on disk, such as 5GB, 5GiB or a number of bytes; least \
            recently used are evicted first [default: a fifth of the free space, at most 32 GiB]",
        values: AllowedValues::Checked(|text| byte_count(text).map(drop)),
        repeats: false,
    },
    BackendOption {
        name: WEIGHTS,
        placeholder: "MODE",
        help: "Read packed weights into memory and check them, or map their file, which starts sooner, \
            checks less and computes more slowly; the system kills the process (SIGBUS) if another \
            program shortens a mapped file [default: read]",
        values: AllowedValues::OneOf(|| names(RESIDENCES)),
        repeats: false,
    },
    BackendOption {
        name: ZERO_BLOCKS,
        placeholder: "MODE",
        help: "Skip blocks of 32x32 zeros of matrices that have many, or keep them (does not affect results) \
            [default: skip]",
        values: AllowedValues::OneOf(|| names(ZERO_BLOCK_MODES)),
        repeats: false,
    },
    BackendOption {
        name: EQUAL_WEIGHTS,
        placeholder: "MODE",
        help: "Share the memory of equal weights, or keep each its own (does not affect results) [default: share]",
        values: AllowedValues::OneOf(|| names(EQUAL_WEIGHT_MODES)),
        repeats: false,
    },
    BackendOption {
        name: HOT_REPLICATE,
        placeholder: "SIZE",
        help: "Copy hot weights to every socket, those with the largest share read per token first, in at most this \
            size of copies in all, such as 8GB; off, and a single socket, copy nothing (does not affect results) \
            [default: off]",
        values: AllowedValues::Checked(|text| copy_limit(text).map(drop)),
        repeats: false,
    },
    BackendOption {
        name: MEMORY_POLICY,
        placeholder: "POLICY",
        help: "Place the pages of weights: local is the node of the thread that fills them, interleave all nodes in \
            turn, node:N node N while it has room, strict:N node N only (does not affect results) \
            [default: the policy of the process]",
        values: AllowedValues::Checked(|text| MemoryPolicy::parse(text).map(drop)),
        repeats: false,
    },
];

/// Values with the names that users write.
type Choices<T> = [(&'static str, T)];

const AFFINITIES: &Choices<Affinity> = &[
    ("auto", Affinity::Auto),
    ("compact", Affinity::Compact),
    ("scatter", Affinity::Scatter),
    ("none", Affinity::None),
];

/// How packed weights are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CacheMode {
    Auto,
    ReadAndWrite,
    Read,
    Off,
}

const CACHE_MODES: &Choices<CacheMode> = &[
    ("auto", CacheMode::Auto),
    ("on", CacheMode::ReadAndWrite),
    ("read-only", CacheMode::Read),
    ("off", CacheMode::Off),
];

const RESIDENCES: &Choices<Residence> = &[("read", Residence::Memory), ("mmap", Residence::File)];

const EQUAL_WEIGHT_MODES: &Choices<EqualWeights> =
    &[("share", EqualWeights::Share), ("keep", EqualWeights::Keep)];

const ZERO_BLOCK_MODES: &Choices<ZeroBlocks> = &[("skip", ZeroBlocks::Skip), ("keep", ZeroBlocks::Keep)];

fn names<T>(choices: &Choices<T>) -> Vec<&'static str> {
    choices.iter().map(|(name, _)| *name).collect()
}

/// The choice of a name.
fn named<T: Copy>(choices: &Choices<T>, name: &str) -> Result<T, String> {
    let found = choices.iter().find(|(known, _)| *known == name).map(|(_, choice)| *choice);
    found.ok_or_else(|| format!("must be one of {}", names(choices).join(", ")))
}

/// The most bytes of copies of hot weights; `None` switches them off.
fn copy_limit(text: &str) -> Result<Option<u64>, String> {
    match text {
        "off" => Ok(None),
        size => byte_count(size).map(Some).map_err(|error| format!("{error}, or off")),
    }
}

fn precision(name: &str) -> Result<ActivationPrecision, String> {
    let choices: Vec<_> = ActivationPrecision::ALL.iter().map(|it| (it.name(), *it)).collect();
    named(&choices, name)
}

/// This machine's processor.
fn device() -> BackendDevice {
    let threads = CpuOptions::default().threads.to_string();
    let settings = vec![("isa", kernels::tables()[0].name.to_owned()), ("threads", threads)];
    BackendDevice { settings, ..BackendDevice::only("the host's processor") }
}

fn open(settings: &BackendSettings, services: &Arc<dyn Services>) -> Result<Box<dyn AnyBackend>> {
    let table = match settings.get(ISA) {
        Some(isa) => kernels::by_name(isa)?,
        None => kernels::tables()[0],
    };
    let precision = precision_rule(settings, &table, ProcessorModel::here())?;
    let cpu = Cpu::with_table(cpu_options(settings, precision)?, table)?.with_rows(Arc::clone(services));
    let store = store_options(settings)?.and_then(|options| services.store(STORE, options));
    Ok(Box::new(match store {
        Some(store) => cpu.with_store(store),
        None => cpu,
    }))
}

/// The rule of these settings for the kernels of `table` on a processor. A set precision comes first. A set
/// instruction set fixes the rest, so that results do not depend on the machine.
fn precision_rule(
    settings: &BackendSettings,
    table: &Table,
    processor: Option<ProcessorModel>,
) -> Result<PrecisionRule> {
    if let Some(requested) = settings.parsed(PRECISION, precision)? {
        return Ok(PrecisionRule::Requested(requested));
    }
    let may_decide = settings.default_rounding == DefaultRounding::ByProcessor
        && settings.get(ISA).is_none()
        && table.matmul.has_bf16_dot;
    let listed = processor.filter(|_| may_decide).and_then(ProductDefault::of);
    Ok(match listed {
        Some(ProductDefault { name, bf16_is_faster: true, .. }) => {
            PrecisionRule::Bf16Products { processor: name }
        }
        _ => PrecisionRule::Fixed,
    })
}

fn cpu_options(settings: &BackendSettings, precision: PrecisionRule) -> Result<CpuOptions> {
    let defaults = CpuOptions::default();
    let affinity = settings.parsed(AFFINITY, |name| named(AFFINITIES, name))?;
    let residence = settings.parsed(WEIGHTS, |name| named(RESIDENCES, name))?;
    let zero_blocks = settings.parsed(ZERO_BLOCKS, |name| named(ZERO_BLOCK_MODES, name))?;
    let equal_weights = settings.parsed(EQUAL_WEIGHTS, |name| named(EQUAL_WEIGHT_MODES, name))?;
    Ok(CpuOptions {
        threads: settings.threads.unwrap_or(defaults.threads),
        precision,
        affinity: affinity.unwrap_or(defaults.affinity),
        residence: residence.unwrap_or(defaults.residence),
        zero_blocks: zero_blocks.unwrap_or(defaults.zero_blocks),
        hot_replicate: settings.parsed(HOT_REPLICATE, copy_limit)?.unwrap_or(defaults.hot_replicate),
        memory_policy: settings.parsed(MEMORY_POLICY, MemoryPolicy::parse)?,
        equal_weights: equal_weights.unwrap_or(defaults.equal_weights),
        await_packed: match cache_mode(settings)? {
            CacheMode::Auto => AwaitPacked::IfSlow,
            CacheMode::ReadAndWrite | CacheMode::Read | CacheMode::Off => AwaitPacked::Always,
        },
    })
}

/// How packed weights are cached. Without a file, there is nothing to map.
fn cache_mode(settings: &BackendSettings) -> Result<CacheMode> {
    let mode = settings.parsed(PACKED_CACHE, |name| named(CACHE_MODES, name))?;
    let residence = settings.parsed(WEIGHTS, |name| named(RESIDENCES, name))?;
    Ok(mode.unwrap_or(match residence {
        Some(Residence::File) => CacheMode::ReadAndWrite,
        Some(Residence::Memory) | None => CacheMode::Auto,
    }))
}

/// What the store of packed weights may write; `None` if there is to be none.
fn store_options(settings: &BackendSettings) -> Result<Option<StoreOptions>> {
    let limit = settings.parsed(PACKED_CACHE_LIMIT, byte_count)?;
    Ok(match cache_mode(settings)? {
        CacheMode::Auto | CacheMode::ReadAndWrite => Some(StoreOptions { writes: true, limit }),
        CacheMode::Read => Some(StoreOptions { writes: false, limit }),
        CacheMode::Off => None,
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Mutex;

    use girih_graph::description::{BackendChoice, NoServices};
    use girih_graph::store::{Store, StoredItem, UnsavedItem};
    use girih_graph::{Error, ErrorKind};

    use super::*;

    fn choice(options: &[(&str, &str)]) -> Result<BackendChoice> {
        let cpu = BackendChoice::parse(&[&INFO], "cpu")?;
        options.iter().try_fold(cpu, |choice, (option, value)| choice.with(option, value))
    }

    fn settings(options: &[(&str, &str)]) -> BackendSettings {
        choice(options).unwrap().settings().clone()
    }

    /// A host that records which stores it was asked for.
    #[derive(Default)]
    struct Asked(Mutex<Vec<(String, StoreOptions)>>);

    impl Services for Asked {
        fn cache(&self) -> Option<PathBuf> {
            panic!("the backend keeps files only in its store");
        }

        fn store(&self, name: &str, options: StoreOptions) -> Option<Box<dyn Store>> {
            self.0.lock().unwrap().push((name.to_owned(), options));
            Some(Box::new(Untouched))
        }

        fn note(&self, sentence: &str) {
            panic!("there is nothing to note: {sentence}");
        }
    }

    /// A store that opening does not use.
    #[derive(Debug)]
    struct Untouched;

    impl Store for Untouched {
        fn find(&self, key: &str) -> Option<Box<dyn StoredItem>> {
            panic!("{key}");
        }

        fn keep(&self, item: Box<dyn UnsavedItem>) {
            panic!("{item:?}");
        }

        fn note(&self, why: &Error) {
            panic!("{why}");
        }
    }

    /// The stores that a host is asked for when the backend is opened with these options.
    fn asked(options: &[(&str, &str)]) -> Vec<(String, StoreOptions)> {
        let asked = Arc::new(Asked::default());
        let services: Arc<dyn Services> = asked.clone();
        choice(options).unwrap().open(&services).map(drop).unwrap();
        asked.0.lock().unwrap().clone()
    }

    #[test]
    fn options_are_parsed() {
        let fixed = PrecisionRule::Fixed;
        let usual = CpuOptions { await_packed: AwaitPacked::IfSlow, ..CpuOptions::default() };
        assert_eq!(cpu_options(&settings(&[]), fixed).unwrap(), usual);
        let awaited = |options: &[_]| cpu_options(&settings(options), fixed).unwrap().await_packed;
        assert_eq!(awaited(&[(PACKED_CACHE, "auto"), (WEIGHTS, "mmap")]), AwaitPacked::IfSlow);
        for always in [(PACKED_CACHE, "on"), (WEIGHTS, "mmap")] {
            assert_eq!(awaited(&[always]), AwaitPacked::Always, "{always:?}");
        }
        let all = [
            (PRECISION, "int8x2"),
            (AFFINITY, "scatter"),
            (WEIGHTS, "mmap"),
            (ZERO_BLOCKS, "keep"),
            (HOT_REPLICATE, "5GB"),
            (MEMORY_POLICY, "strict:1"),
            (EQUAL_WEIGHTS, "keep"),
        ];
        let settings = choice(&all).unwrap().with_threads(Some(3)).settings().clone();
        let expected = CpuOptions {
            threads: 3,
            precision: PrecisionRule::Requested(ActivationPrecision::Int8x2),
            affinity: Affinity::Scatter,
            residence: Residence::File,
            zero_blocks: ZeroBlocks::Keep,
            hot_replicate: Some(5_000_000_000),
            memory_policy: Some(MemoryPolicy::Strict(1)),
            equal_weights: EqualWeights::Keep,
            await_packed: AwaitPacked::Always,
        };
        let rule = precision_rule(&settings, &kernels::tables()[0], ProcessorModel::here()).unwrap();
        assert_eq!(cpu_options(&settings, rule).unwrap(), expected);
    }

    /// Kernels that multiply bf16 with an instruction, or without one.
    fn kernels_with(has_bf16_dot: bool) -> Table {
        let mut table = kernels::by_name("portable").unwrap();
        table.matmul.has_bf16_dot = has_bf16_dot;
        table
    }

    /// The rule for these options on a processor, with kernels that multiply bf16.
    fn rule(options: &[(&str, &str)], processor: Option<ProcessorModel>) -> PrecisionRule {
        precision_rule(&settings(options), &kernels_with(true), processor).unwrap()
    }

    /// EPYC 9004.
    const ZEN4: ProcessorModel = ProcessorModel { vendor: *b"AuthenticAMD", family: 0x19, model: 0x11 };
    /// EPYC 7003.
    const ZEN3: ProcessorModel = ProcessorModel { model: 0x01, ..ZEN4 };
    const EMERALD_RAPIDS: ProcessorModel =
        ProcessorModel { vendor: *b"GenuineIntel", family: 6, model: 0xcf };

    #[test]
    fn the_processor_decides_if_no_option_does() {
        let bf16 = PrecisionRule::Bf16Products { processor: "AMD Zen 4" };
        assert_eq!(rule(&[], Some(ZEN4)), bf16);
        for other in [Some(ZEN3), Some(EMERALD_RAPIDS), None] {
            assert_eq!(rule(&[], other), PrecisionRule::Fixed, "{other:?}");
        }
        let plain = precision_rule(&settings(&[]), &kernels_with(false), Some(ZEN4)).unwrap();
        assert_eq!(plain, PrecisionRule::Fixed, "kernels without the instruction");
    }

    #[test]
    fn the_precision_comes_before_the_instruction_set_and_that_before_the_processor() {
        let requested = PrecisionRule::Requested(ActivationPrecision::Bf16);
        for processor in [Some(ZEN4), Some(ZEN3), None] {
            assert_eq!(rule(&[(PRECISION, "bf16")], processor), requested, "{processor:?}");
            assert_eq!(rule(&[(PRECISION, "bf16"), (ISA, "avx512bf16")], processor), requested);
            assert_eq!(rule(&[(ISA, "avx512bf16")], processor), PrecisionRule::Fixed, "{processor:?}");
        }
    }

    #[test]
    fn a_fixed_rounding_does_not_depend_on_the_processor() {
        let fixed = |options| choice(options).unwrap().with_default_rounding(DefaultRounding::Fixed);
        let rule = |choice: BackendChoice| {
            precision_rule(choice.settings(), &kernels_with(true), Some(ZEN4)).unwrap()
        };
        assert_eq!(rule(fixed(&[])), PrecisionRule::Fixed);
        let bf16 = PrecisionRule::Requested(ActivationPrecision::Bf16);
        assert_eq!(rule(fixed(&[(PRECISION, "bf16")])), bf16, "unless it is told otherwise");
    }

    #[test]
    fn the_store_of_packed_weights_has_the_options_of_the_user() {
        let one = |writes, limit| vec![("packed".to_owned(), StoreOptions { writes, limit })];
        assert_eq!(asked(&[]), one(true, None));
        assert_eq!(asked(&[(PACKED_CACHE, "on"), (PACKED_CACHE_LIMIT, "5")]), one(true, Some(5)));
        assert_eq!(asked(&[(PACKED_CACHE, "read-only")]), one(false, None));
        assert_eq!(asked(&[(PACKED_CACHE, "off"), (PACKED_CACHE_LIMIT, "5")]), []);
    }

    #[test]
    fn every_named_value_opens_if_the_machine_has_it() {
        let services: Arc<dyn Services> = Arc::new(NoServices);
        for spec in INFO.options {
            let AllowedValues::OneOf(values) = spec.values else { continue };
            for value in values() {
                let opened = choice(&[(spec.name, value)]).unwrap().open(&services);
                let has_kernels = kernels::by_name(value).is_ok();
                match opened {
                    Ok(cpu) => assert!(spec.name != ISA || cpu.kernels() == value, "{value}"),
                    Err(error) => {
                        assert!(spec.name == ISA && !has_kernels, "{error}");
                        assert!(error.to_string().contains(value), "{error}");
                    }
                }
            }
        }
    }

    #[test]
    fn wrong_values_are_refused_by_name() {
        for (option, value) in [
            (ISA, "mmx"),
            (PRECISION, "int4"),
            (AFFINITY, "near"),
            (PACKED_CACHE, "yes"),
            (PACKED_CACHE_LIMIT, "1G"),
            (PACKED_CACHE_LIMIT, "-1"),
            (WEIGHTS, ""),
            (HOT_REPLICATE, "all"),
            (MEMORY_POLICY, "node:x"),
        ] {
            let error = choice(&[(option, value)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused);
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("option '{option}' of the cpu backend: '{value}' must be ")),
                "{error}"
            );
        }
        let services: Arc<dyn Services> = Arc::new(NoServices);
        let error = choice(&[]).unwrap().with_threads(Some(0)).open(&services).map(drop).unwrap_err();
        assert_eq!(error.to_string(), "0 threads requested; at least 1 is needed");
    }

    #[test]
    fn help_states_each_default() {
        for BackendOption { name, placeholder, help, .. } in INFO.options {
            assert!(help.contains(" [default: ") && help.ends_with(']'), "{name}: {help}");
            assert_eq!(*placeholder, placeholder.to_uppercase(), "{name}");
        }
    }

    #[test]
    fn the_reference_does_not_round_activations() {
        let given = choice(&[(PRECISION, "int8"), (ISA, "portable"), (PACKED_CACHE, "off")]).unwrap();
        assert_eq!(given.reference().unwrap().settings(), &settings(&[(PRECISION, "f32")]));
    }
}
