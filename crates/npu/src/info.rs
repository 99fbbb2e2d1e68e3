//! The backend's description: its options with their help, and how they are parsed.

use std::path::PathBuf;
use std::sync::Arc;

use girih_graph::description::{
    AllowedValues, AnyBackend, BackendDevice, BackendInfo, BackendOption, BackendSettings, DriverFiles,
    Services, byte_count, numbers,
};
use girih_tensor::{Error, Result};

use crate::backend::{Npu, NpuOptions, ONE_ROW_NOTE};
use crate::blob::{BlobFolder, DEFAULT_CACHE_BYTES};
use crate::driver::{Runtime, WarningSink};
use crate::pass::{ArrayMapping, ArrayWeights};
use crate::target::Target;

/// The description of the backend.
pub static INFO: BackendInfo = BackendInfo {
    name: "npu",
    about: "a simulated array",
    devices: |_| devices(),
    options: OPTIONS,
    exact: &[],
    driver: DriverFiles::NONE,
    is_simulated: true,
    notes: &[ONE_ROW_NOTE],
    open,
};

/// The folder of blobs in the host's cache.
const BLOB_FOLDER: &str = "blobs";

/// The value of `blobs` that keeps none.
const NO_BLOBS: &str = "off";

const MAPPING: &str = "npu-mapping";
const WEIGHTS: &str = "npu-weights";
const RUNTIME: &str = "npu-runtime";
const LENGTHS: &str = "npu-lengths";
const CONTEXTS: &str = "npu-contexts";
const STRICT: &str = "npu-strict";
const BLOBS: &str = "blobs";
const BLOBS_LIMIT: &str = "blobs-limit";

const OPTIONS: &[BackendOption] = &[
    BackendOption {
        name: MAPPING,
        placeholder: "FILE|NAME",
        help: "Mapping of the model to the array: a file, or a name such as by-cost, mlir-air, mlir-air-tiles or \
            unstitched [default: by-cost]",
        values: AllowedValues::Checked(|text| not_empty(text).map(drop)),
        repeats: false,
    },
    BackendOption {
        name: WEIGHTS,
        placeholder: "FORMAT",
        help: "Format in which the array holds the matrices of matrix products: q4nx, bf16, or stored, which \
            is Q4NX if the model stores them so and otherwise bf16; q4nx changes results as quantizing the \
            model does [default: stored]",
        values: AllowedValues::Checked(|text| weights(text).map(drop)),
        repeats: false,
    },
    BackendOption {
        name: RUNTIME,
        placeholder: "SETTING",
        help: "Setting of the array's runtime, such as values=brokered (does not affect results); an unknown \
            one lists them all; can be repeated",
        values: AllowedValues::Checked(runtime_choice),
        repeats: true,
    },
    BackendOption {
        name: LENGTHS,
        placeholder: "N",
        help: "Rows for which array programs are compiled in addition to 1 and --chunk, so that short \
            prompts are padded less [default: 64,256,1024]",
        values: AllowedValues::Checked(|text| lengths(text).map(drop)),
        repeats: false,
    },
    BackendOption {
        name: CONTEXTS,
        placeholder: "N",
        help: "Positions for which array programs with attention are compiled in addition to --context \
            [default: 256,1024,4096,16384]",
        values: AllowedValues::Checked(|text| contexts(text).map(drop)),
        repeats: false,
    },
    BackendOption {
        name: STRICT,
        placeholder: "on|off",
        help: "Whether a model with ops that the array has no program for is refused; otherwise the host computes \
            them [default: off]",
        values: AllowedValues::OneOf(|| vec!["on", "off"]),
        repeats: false,
    },
    BackendOption {
        name: BLOBS,
        placeholder: "DIR",
        help: "Folder that keeps compiled array programs for the next start, or off \
            [default: blobs in the cache folder]",
        values: AllowedValues::Checked(|text| not_empty(text).map(drop)),
        repeats: false,
    },
    BackendOption {
        name: BLOBS_LIMIT,
        placeholder: "SIZE",
        help: "Maximum size of all kept array programs, such as 5GB, 5GiB or a number of bytes; least \
            recently used are evicted first [default: 1 GiB]",
        values: AllowedValues::Checked(|text| byte_count(text).map(drop)),
        repeats: false,
    },
];

fn not_empty(text: &str) -> Result<&str, String> {
    if text.is_empty() { Err("must not be empty".to_owned()) } else { Ok(text) }
}

fn weights(text: &str) -> Result<ArrayWeights, String> {
    text.parse().map_err(|error: Error| error.to_string())
}

fn runtime_choice(name: &str) -> Result<(), String> {
    let names = Runtime::choices();
    if names.contains(&name) { Ok(()) } else { Err(format!("must be one of {}", names.join(", "))) }
}

fn lengths(text: &str) -> Result<Vec<u32>, String> {
    numbers(text, 65536)
}

fn contexts(text: &str) -> Result<Vec<u32>, String> {
    numbers(text, u32::MAX)
}

/// The arrays that can be simulated.
fn devices() -> Result<Vec<BackendDevice>> {
    let device = |name: String| {
        let target = Target::named(&name)?;
        let settings = vec![("cores", target.cores().to_string())];
        Ok(BackendDevice { name: Some(name), about: target.title, settings })
    };
    Target::names().into_iter().map(device).collect()
}

fn open(settings: &BackendSettings, services: &Arc<dyn Services>) -> Result<Box<dyn AnyBackend>> {
    let device = settings.device.as_ref().expect("each of the devices has a name");
    let mut npu = Npu::new(device, npu_options(settings)?)?;
    let mapping = settings.get(MAPPING).map(ArrayMapping::read).transpose()?;
    let weights = settings.parsed(WEIGHTS, weights)?;
    if mapping.is_some() || weights.is_some() {
        let mapping = mapping.unwrap_or_else(|| NpuOptions::default().policy.into());
        npu = npu.with_mapping(ArrayMapping { weights: weights.unwrap_or(mapping.weights), ..mapping });
    }
    if let Some(folder) = blob_folder(settings, services.cache())? {
        npu = npu.with_blobs(folder);
    }
    let services = Arc::clone(services);
    Ok(Box::new(npu.with_warnings(WarningSink::new(move |sentence| services.note(sentence)))))
}

fn npu_options(settings: &BackendSettings) -> Result<NpuOptions> {
    let defaults = NpuOptions::default();
    let with = |runtime: Runtime, name| runtime.with(name);
    Ok(NpuOptions {
        runtime: settings.all(RUNTIME).try_fold(defaults.runtime, with)?,
        lengths: settings.parsed(LENGTHS, lengths)?.unwrap_or(defaults.lengths),
        contexts: settings.parsed(CONTEXTS, contexts)?.unwrap_or(defaults.contexts),
        is_strict: settings.get(STRICT) == Some("on"),
        ..defaults
    })
}

/// The folder of blobs, if they are kept.
fn blob_folder(settings: &BackendSettings, cache: Option<PathBuf>) -> Result<Option<BlobFolder>> {
    let limit = settings.parsed(BLOBS_LIMIT, byte_count)?.unwrap_or(DEFAULT_CACHE_BYTES);
    let (path, is_named) = match settings.get(BLOBS) {
        Some(NO_BLOBS) => return Ok(None),
        Some(folder) => (Some(PathBuf::from(folder)), true),
        None => (cache.map(|cache| cache.join(BLOB_FOLDER)), false),
    };
    Ok(path.map(|path| BlobFolder { path, limit, is_named }))
}

#[cfg(test)]
mod tests {
    use girih_graph::description::{BackendChoice, NoServices};
    use girih_tensor::ErrorKind;

    use super::*;
    use crate::driver::{Dispatch, ValueUse};

    fn choice(options: &[(&str, &str)]) -> Result<BackendChoice> {
        let npu = BackendChoice::parse(&[&INFO], "npu:toy")?;
        options.iter().try_fold(npu, |choice, (option, value)| choice.with(option, value))
    }

    fn settings(options: &[(&str, &str)]) -> BackendSettings {
        choice(options).unwrap().settings().clone()
    }

    fn refusal(options: &[(&str, &str)]) -> Error {
        let services: Arc<dyn Services> = Arc::new(NoServices);
        choice(options).and_then(|choice| choice.open(&services)).map(drop).unwrap_err()
    }

    #[test]
    fn options_are_parsed() {
        assert_eq!(npu_options(&settings(&[])).unwrap(), NpuOptions::default());
        let set = settings(&[
            (RUNTIME, "values=brokered"),
            (RUNTIME, "dispatch=single"),
            (LENGTHS, "8,65536"),
            (CONTEXTS, "4294967295"),
            (STRICT, "on"),
        ]);
        let runtime =
            Runtime { values: ValueUse::Brokered, dispatch: Dispatch::Single, ..Runtime::default() };
        let (lengths, contexts) = (vec![8, 65536], vec![u32::MAX]);
        let expected = NpuOptions { runtime, lengths, contexts, is_strict: true, ..NpuOptions::default() };
        assert_eq!(npu_options(&set).unwrap(), expected);
    }

    #[test]
    fn blobs_are_kept_in_the_named_folder_or_in_the_cache() {
        let folder = |options: &[(&str, &str)], cache: Option<&str>| {
            blob_folder(&settings(options), cache.map(PathBuf::from)).unwrap()
        };
        let kept = |path: &str, limit, is_named| Some(BlobFolder { path: path.into(), limit, is_named });
        assert_eq!(folder(&[], Some("/cache/girih")), kept("/cache/girih/blobs", DEFAULT_CACHE_BYTES, false));
        assert_eq!(folder(&[(BLOBS_LIMIT, "7")], Some("/c")), kept("/c/blobs", 7, false));
        assert_eq!(folder(&[(BLOBS, "/d")], Some("/c")), kept("/d", DEFAULT_CACHE_BYTES, true));
        assert_eq!(folder(&[(BLOBS, "off")], Some("/c")), None);
        assert_eq!(folder(&[], None), None);
    }

    #[test]
    fn every_device_and_mapping_opens() {
        let services: Arc<dyn Services> = Arc::new(NoServices);
        let toy = settings(&[]);
        for device in (INFO.devices)(&toy).unwrap().into_iter().filter_map(|device| device.name) {
            let choice = BackendChoice::parse(&[&INFO], &format!("npu:{device}")).unwrap();
            assert_eq!(choice.open(&services).unwrap().kernels(), device);
        }
        for name in ArrayMapping::names() {
            choice(&[(MAPPING, name)]).unwrap().open(&services).map(drop).unwrap();
        }
    }

    #[test]
    fn wrong_values_are_refused_by_name() {
        for (option, value) in [
            (MAPPING, ""),
            (WEIGHTS, "q4"),
            (RUNTIME, "values=lost"),
            (LENGTHS, "0"),
            (LENGTHS, "8,65537"),
            (LENGTHS, ""),
            (LENGTHS, "8,"),
            (CONTEXTS, "0"),
            (CONTEXTS, "4294967296"),
            (STRICT, "yes"),
            (BLOBS, ""),
            (BLOBS_LIMIT, "1G"),
        ] {
            let error = choice(&[(option, value)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused);
            assert!(
                error.to_string().starts_with(&format!("option '{option}' of the npu backend: '{value}' ")),
                "{error}"
            );
        }
        let error = refusal(&[(MAPPING, "fastest")]);
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let sentence = error.to_string();
        assert!(sentence.starts_with("unknown mapping 'fastest': known are mlir-air, "), "{sentence}");
        assert!(sentence.ends_with(", or a file"), "{sentence}");
    }

    #[test]
    fn help_states_each_default() {
        let defaults = NpuOptions::default();
        let list = |numbers: Vec<u32>| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let known = [
            (MAPPING, defaults.policy.name().to_owned()),
            (WEIGHTS, ArrayWeights::default().name().to_owned()),
            (LENGTHS, list(defaults.lengths)),
            (CONTEXTS, list(defaults.contexts)),
            (STRICT, "off".to_owned()),
            (BLOBS, format!("{BLOB_FOLDER} in the cache folder")),
            (BLOBS_LIMIT, format!("{} GiB", DEFAULT_CACHE_BYTES >> 30)),
        ];
        for BackendOption { name, help, repeats, .. } in INFO.options {
            match known.iter().find(|(option, _)| option == name) {
                Some((_, default)) => assert!(help.ends_with(&format!(" [default: {default}]")), "{help}"),
                None => assert!(*repeats && help.ends_with("can be repeated"), "{name}: {help}"),
            }
        }
    }

    /// No option of an array makes it more exact, so a reference keeps the user's.
    #[test]
    fn a_reference_keeps_its_options() {
        let given = choice(&[(MAPPING, "mlir-air-tiles"), (LENGTHS, "8")]).unwrap();
        assert_eq!(given.reference().unwrap().settings(), given.settings());
    }
}
