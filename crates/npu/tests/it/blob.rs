//! Blobs: decoding returns what was encoded, and a blob of another version or
//! target is refused with an error that names it.

use girih_npu::Target;
use girih_npu::blob::{BlobCache, decode, digest, encode, read, read_for_its_target};
use girih_npu::driver::Compiler;
use girih_npu::form::groups::ArrayProgram;
use girih_npu::form::schedule::Schedule;
use girih_npu::pass::{ArrayMapping, Grouping, NoDump, Policy, VERSION, compile, groups};
use object::{Object as _, ObjectSection as _};
use sha2::{Digest as _, Sha256};

use crate::llama::{LlamaSizes, SMALL, key, llama};

fn programs(target: &Target) -> Vec<ArrayProgram> {
    let cut = |rows| {
        groups(&llama(&SMALL, key(rows)), target, &Policy::MLIR_AIR.into(), &mut NoDump).unwrap().programs
    };
    let mut programs = cut(64);
    // The head is the same program for a prompt and for a token.
    let decode = cut(1).into_iter().filter(|program| !programs.contains(program)).collect::<Vec<_>>();
    assert_eq!(decode.len(), 2);
    programs.extend(decode);
    programs
}

fn compiled(target: &Target) -> Vec<(ArrayProgram, Schedule)> {
    let compile = |program: ArrayProgram| {
        let schedule = compile(&program, target, &mut NoDump).unwrap();
        (program, schedule)
    };
    programs(target).into_iter().map(compile).collect()
}

/// A changed blob with the digest that it needs.
fn with_digest(bytes: &[u8]) -> Vec<u8> {
    let content = &bytes[..bytes.len() - 32];
    [content, &Sha256::digest(content)[..]].concat()
}

#[test]
fn a_blob_decodes_to_the_encoded_schedule() {
    for name in ["toy", "xdna2-strix"] {
        let target = Target::named(name).unwrap();
        for (_, schedule) in compiled(&target) {
            let bytes = encode(&schedule, &target).unwrap();
            assert_eq!(&bytes[..4], b"\x7fELF");
            assert_eq!(decode(&bytes, &target).unwrap(), schedule);
            assert_eq!(encode(&schedule, &target).unwrap(), bytes, "equal schedules have equal bytes");
        }
    }
}

/// Seeds that are refused at once teach a fuzzer nothing. CONTRIBUTING.md says how they are
/// made.
#[test]
fn the_seeds_of_the_fuzz_targets_are_accepted() {
    let toy = Target::named("toy").unwrap();
    let files = |folder: &str| {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
        let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!files.is_empty());
        files
    };
    for path in files("fuzz/seeds/blob") {
        let bytes = std::fs::read(&path).unwrap();
        assert!(decode(&bytes, &toy).is_ok(), "{}: compile it again", path.display());
        girih_npu::fuzz::blob(&bytes);
    }
    for path in files("fuzz/seeds/mapping").into_iter().chain(files("crates/npu/src/pass/mapping")) {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.parse::<ArrayMapping>().is_ok(), "{}", path.display());
        girih_npu::fuzz::mapping(&text);
    }
    let is_target = |path: &std::path::PathBuf| !path.to_string_lossy().contains("kernels-");
    for path in files("targets/npu").into_iter().filter(is_target) {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(Target::parse(&text, None).is_ok(), "{}", path.display());
        girih_npu::fuzz::target(&text);
    }
}

#[test]
fn a_blob_is_read_for_the_target_that_it_names() {
    let toy = Target::named("toy").unwrap();
    for (_, schedule) in compiled(&toy) {
        let bytes = encode(&schedule, &toy).unwrap();
        assert_eq!(read_for_its_target(&bytes[..]).unwrap(), schedule);
        let of_other = Schedule { target: "other".to_owned(), ..schedule };
        let error = read_for_its_target(&encode(&of_other, &toy).unwrap()[..]).unwrap_err().to_string();
        assert!(error.contains("no NPU target is called 'other'"), "{error}");
    }
}

#[test]
fn a_blob_of_another_target_or_version_is_refused_by_name() {
    let toy = Target::named("toy").unwrap();
    let strix = Target::named("xdna2-strix").unwrap();
    let (_, schedule) = compiled(&toy).swap_remove(0);
    let bytes = encode(&schedule, &toy).unwrap();
    let refused = |bytes: &[u8], target: &Target| decode(bytes, target).unwrap_err().to_string();
    assert_eq!(refused(&bytes, &strix), "blob rms_gemms_rope is for the target toy; this is xdna2-strix");
    let mut changed = toy.clone();
    changed.figures[0].value = "7".to_owned();
    assert_eq!(
        refused(&bytes, &changed),
        "blob rms_gemms_rope was made with other figures of toy: compile it again"
    );
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    let at = bytes.windows(version.len()).position(|window| window == version).unwrap();
    let mut older = bytes.clone();
    older[at] = b'9';
    assert!(refused(&older, &toy).starts_with("this is not a blob, or it is damaged: its last 32 bytes"));
    let older = with_digest(&older);
    assert!(refused(&older, &toy).contains("is of girih 9"), "{}", refused(&older, &toy));
    assert!(refused(&bytes[..40], &toy).starts_with("this is not a blob"));
    assert!(refused(b"", &toy).starts_with("this is not a blob"));
}

/// The key of a cached blob contains the version of the passes. When this test
/// fails, the passes produce other schedules: raise `pass::VERSION` and update
/// the digest.
#[test]
fn the_version_of_the_passes_rises_with_their_schedules() {
    let target = Target::named("toy").unwrap();
    let mut text: String = compiled(&target).iter().map(|(_, schedule)| schedule.to_string()).collect();
    let head = LlamaSizes { layers: 1, vocabulary: 3 * 16384, ..SMALL };
    let head = groups(&llama(&head, key(1)), &target, &Policy::MLIR_AIR.into(), &mut NoDump).unwrap();
    let resident = Policy { grouping: Grouping::Resident, ..Policy::BY_COST };
    let resident = groups(&llama(&SMALL, key(1)), &target, &resident.into(), &mut NoDump).unwrap();
    for program in head.programs.iter().chain(&resident.programs) {
        text += &compile(program, &target, &mut NoDump).unwrap().to_string();
    }
    assert_eq!((VERSION, &digest(&text)[..16]), (12, "47cd22392c7e77c2"));
}

/// Float parameters of kernel calls are stored once, in a section of their own.
#[test]
fn float_parameters_are_stored_once_in_a_section() {
    let target = Target::named("toy").unwrap();
    for (program, schedule) in compiled(&target) {
        let file = encode(&schedule, &target).unwrap();
        let file = object::read::elf::ElfFile64::<object::Endianness>::parse(&*file).unwrap();
        let section = file.section_by_name(".constants").unwrap();
        let constants: Vec<f32> = section
            .data()
            .unwrap()
            .chunks(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
            .collect();
        let want: &[f32] = match program.name.as_str() {
            "rms_gemms_rope" | "rms_gemv_rope" | "o_ffn" | "o_gemv_ffn" => &[1e-5],
            "flash_attn" => &[0.25],
            _ => &[],
        };
        assert_eq!(constants, want, "{}", program.name);
    }
}

/// A device file has length 0 and never ends.
#[test]
fn reading_an_endless_file_stops_at_the_maximum_size_of_a_blob() {
    let target = Target::named("toy").unwrap();
    let error = read(std::io::repeat(0x7f), &target).unwrap_err().to_string();
    assert_eq!(error, "has over 268435456 bytes, the maximum of a blob: remove it");
    let (_, schedule) = compiled(&target).swap_remove(0);
    let bytes = encode(&schedule, &target).unwrap();
    assert_eq!(read(&bytes[..], &target).unwrap(), schedule);
}

/// Another user may plant a blob, or make a folder that a blob can be planted in.
#[test]
fn a_blob_that_others_could_have_written_is_refused_by_name() {
    use girih_npu::blob::BlobFolder;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("planted-blobs");
    let _ = fs::remove_dir_all(&folder);
    let mode =
        |path: &std::path::Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let target = Target::named("toy").unwrap();
    let cache = BlobCache::open(&folder).unwrap();
    let (program, schedule) = compiled(&target).swap_remove(0);
    cache.put(&program, &target, &schedule).unwrap();
    let path = folder.join(format!("{}.elf", BlobCache::key(&program, &target)));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let refusal = |part: &str| {
        let error = cache.get(&program, &target).unwrap_err().to_string();
        assert!(error.starts_with(&path.display().to_string()) && error.contains(part), "{error}");
    };
    mode(&path, 0o666);
    refusal("has the mode 0666, so others can write to it");
    fs::remove_file(&path).unwrap();
    symlink("/dev/zero", &path).unwrap();
    refusal("is a link");
    fs::remove_file(&path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    refusal("is not a regular file");
    // It is replaced.
    cache.put(&program, &target, &schedule).unwrap();
    assert_eq!(cache.get(&program, &target).unwrap().as_ref(), Some(&schedule));

    mode(&folder, 0o777);
    let opened = |is_named| {
        let mut notes = Vec::new();
        let blobs = BlobFolder { path: folder.clone(), limit: 1 << 20, is_named };
        let opened = blobs.open(|note| notes.push(note.to_owned()));
        (opened.map(|cache| cache.is_some()).map_err(|error| error.to_string()), notes)
    };
    let sentence = format!("{}: has the mode 0777", folder.display());
    assert!(opened(true).0.unwrap_err().starts_with(&sentence));
    let (cache, notes) = opened(false);
    assert_eq!(cache, Ok(false));
    assert!(notes[0].starts_with(&sentence) && notes[0].ends_with("compiled programs are not kept"));
}

/// A blob with the right digest is checked, too.
#[test]
fn a_blob_whose_schedule_breaks_a_rule_is_refused_by_name() {
    let target = Target::named("toy").unwrap();
    let (_, mut schedule) = compiled(&target).swap_remove(1);
    let iteration = Some(girih_npu::form::schedule::Dim { size: 65, stride: 0 });
    schedule.launches[0].descriptors[0].iteration = iteration;
    let error = decode(&encode(&schedule, &target).unwrap(), &target).unwrap_err().to_string();
    let sentence = "blob 'flash_attn' breaks a rule of toy: mixed_heads: descriptor ";
    assert!(
        error.starts_with(sentence) && error.ends_with("has 65 iterations; 1..=64 is allowed"),
        "{error}"
    );
}

/// A second start takes the grouping that the first one chose, even one chosen before the cache was opened.
#[test]
fn the_chosen_grouping_is_kept_beside_the_blobs() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("groupings");
    let _ = std::fs::remove_dir_all(&folder);
    let cache = BlobCache::open(&folder).unwrap();
    let (target, graph) = (Target::named("toy").unwrap(), llama(&SMALL, key(1)));
    let first = Compiler::new(target.clone(), Policy::BY_COST, None);
    let policy = first.policy_for(&graph);
    let mapping = ArrayMapping {
        policy: Policy { grouping: Grouping::ByCost, ..policy },
        ..ArrayMapping::from(Policy::BY_COST)
    };
    let place = BlobCache::grouping_key(&graph, &mapping, &target);
    assert_eq!(cache.grouping(&place).unwrap(), None);
    first.use_cache(cache.clone());
    assert_eq!(cache.grouping(&place).unwrap(), Some(policy.grouping));
    let second =
        || Compiler::new(target.clone(), Policy::BY_COST, Some(cache.clone())).policy_for(&graph).grouping;
    let other = if policy.grouping == Grouping::Joined { Grouping::Resident } else { Grouping::Joined };
    cache.keep_grouping(&place, other).unwrap();
    let file = folder.join(format!("{place}.grouping"));
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    std::fs::File::options().write(true).open(&file).unwrap().set_modified(old).unwrap();
    assert_eq!(second(), other, "it is not chosen again");
    assert!(std::fs::metadata(&file).unwrap().modified().unwrap() > old, "used files are evicted last");
    for wrong in ["by-cost", "stitched", "", "joined "] {
        std::fs::write(&file, wrong).unwrap();
        let error = cache.grouping(&place).unwrap_err().to_string();
        assert!(error.contains("has no known grouping"), "{error}");
    }
    assert_eq!(second(), policy.grouping, "it is chosen again");
    assert_eq!(cache.grouping(&place).unwrap(), Some(policy.grouping));
}

#[test]
fn the_cache_finds_the_blobs_that_were_put() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("npu-blobs");
    let _ = std::fs::remove_dir_all(&folder);
    let cache = BlobCache::open(&folder).unwrap();
    let target = Target::named("toy").unwrap();
    let all = compiled(&target);
    for (program, schedule) in &all {
        assert_eq!(cache.get(program, &target).unwrap(), None);
        cache.put(program, &target, schedule).unwrap();
        assert_eq!(cache.get(program, &target).unwrap().as_ref(), Some(schedule));
    }
    let listed: Vec<String> = cache.list().unwrap().into_iter().map(|entry| entry.program).collect();
    let names: Vec<&str> = all.iter().map(|(_, schedule)| schedule.name.as_str()).collect();
    assert!(names.iter().all(|name| listed.iter().any(|known| known == name)), "{listed:?}");
    let entry = cache.list().unwrap().remove(0);
    std::fs::write(folder.join(format!("{}.elf", entry.key)), b"not a blob").unwrap();
    let error = cache.get(&all[0].0, &target).unwrap_err().to_string();
    assert!(error.contains(&entry.key) && error.contains("not a blob"), "{error}");
    let path = |program: &ArrayProgram| folder.join(format!("{}.elf", BlobCache::key(program, &target)));
    std::fs::copy(path(&all[1].0), path(&all[2].0)).unwrap();
    let error = cache.get(&all[2].0, &target).unwrap_err().to_string();
    assert!(
        error.ends_with("has the program flash_attn or other arguments; o_ffn with its arguments is needed"),
        "{error}"
    );
}

/// The cache evicts the least recently used blobs.
#[test]
fn the_cache_stays_within_its_limit() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("few-blobs");
    let _ = std::fs::remove_dir_all(&folder);
    let target = Target::named("toy").unwrap();
    let all = compiled(&target);
    let sizes: Vec<u64> =
        all.iter().map(|(_, schedule)| encode(schedule, &target).unwrap().len() as u64).collect();
    let cache = BlobCache::open(&folder).unwrap().with_limit(sizes[0] + sizes[1] + sizes[2] - 1);
    let put = |index: usize| cache.put(&all[index].0, &target, &all[index].1).unwrap();
    let has = |index: usize| cache.get(&all[index].0, &target).unwrap().is_some();
    put(0);
    // Modification times have the resolution of the system's clock.
    std::thread::sleep(std::time::Duration::from_millis(20));
    put(1);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(has(0), "it was put, and its use makes it the most recent");
    std::thread::sleep(std::time::Duration::from_millis(20));
    put(2);
    assert!(has(2) && !has(1), "the least recently used blob was evicted");
    let listed = cache.list().unwrap();
    assert!(listed.iter().all(|entry| entry.program != all[1].1.name), "{listed:?}");
    let total: u64 = listed.iter().map(|entry| entry.bytes).sum();
    assert!(total < sizes.iter().take(3).sum());
    let none = BlobCache::open(&folder.join("none")).unwrap().with_limit(sizes[0] - 1);
    none.put(&all[0].0, &target, &all[0].1).unwrap();
    assert_eq!(none.get(&all[0].0, &target).unwrap(), None, "larger than the limit");
    let names = |end: &str| {
        let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|extension| extension == end)).count()
    };
    assert_eq!(names("part"), 0);
}

/// A blob that is refused causes a warning, is compiled again, and replaced.
#[test]
fn a_refused_blob_is_reported_and_replaced() {
    use girih_npu::driver::{Compiler, WarningSink};
    use std::sync::{Arc, Mutex};
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("refused-blobs");
    let _ = std::fs::remove_dir_all(&folder);
    let cache = BlobCache::open(&folder).unwrap();
    let target = Target::named("toy").unwrap();
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let compile = || {
        let warnings = Arc::clone(&warnings);
        let sink = WarningSink::new(move |sentence| warnings.lock().unwrap().push(sentence.to_owned()));
        let compiler =
            Compiler::new(target.clone(), Policy::MLIR_AIR, Some(cache.clone())).with_warnings(sink);
        compiler.compile(&llama(&SMALL, key(1)), &mut NoDump).unwrap()
    };
    let first = compile();
    assert_eq!(compile().fresh, 0);
    let entry = cache.list().unwrap().remove(0);
    let path = folder.join(format!("{}.elf", entry.key));
    let mut bytes = std::fs::read(&path).unwrap();
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    let at = bytes.windows(version.len()).position(|window| window == version).unwrap();
    bytes[at] = b'9';
    std::fs::write(&path, with_digest(&bytes)).unwrap();
    let again = compile();
    assert_eq!(again.fresh, 1);
    assert!(again.schedules.iter().zip(&first.schedules).all(|(a, b)| a == b));
    let sentences = warnings.lock().unwrap().clone();
    assert_eq!(sentences.len(), 1, "{sentences:?}");
    assert!(sentences[0].contains("is of girih 9") && sentences[0].contains("is compiled again"));
    assert_eq!(compile().fresh, 0, "it was replaced");
}
