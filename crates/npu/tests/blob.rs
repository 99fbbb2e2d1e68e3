//! Blobs: what is decoded is what was encoded, and what is no blob of this
//! version and target is refused by name.

mod llama;

use girih_npu::Target;
use girih_npu::blob::{Cache, decode, encode};
use girih_npu::form::groups::Program;
use girih_npu::form::schedule::Schedule;
use girih_npu::pass::{NoDump, Policy, compile, groups};
use llama::{SMALL, key, llama};

fn programs(target: &Target) -> Vec<Program> {
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

fn compiled(target: &Target) -> Vec<(Program, Schedule)> {
    let compile = |program: Program| {
        let schedule = compile(&program, target, &mut NoDump).unwrap();
        (program, schedule)
    };
    programs(target).into_iter().map(compile).collect()
}

#[test]
fn a_blob_decodes_to_the_schedule_that_it_was_made_of() {
    for name in ["toy", "xdna2-strix"] {
        let target = Target::named(name).unwrap();
        for (_, schedule) in compiled(&target) {
            let bytes = encode(&schedule, &target).unwrap();
            assert_eq!(&bytes[..4], b"\x7fELF");
            assert_eq!(decode(&bytes, &target).unwrap(), schedule);
            assert_eq!(encode(&schedule, &target).unwrap(), bytes, "equal schedules are equal bytes");
        }
    }
}

#[test]
fn another_target_or_version_is_refused_by_name() {
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
    assert!(refused(&older, &toy).contains("is of girih 9"), "{}", refused(&older, &toy));
    assert!(refused(&bytes[..40], &toy).starts_with("this is no blob"));
    assert!(refused(b"", &toy).starts_with("this is no blob"));
}

/// Cut and flipped blobs are refused, or decode to something; none brings the
/// reader down.
#[test]
fn broken_blobs_are_read_without_harm() {
    let target = Target::named("toy").unwrap();
    let (_, schedule) = compiled(&target).swap_remove(1);
    let bytes = encode(&schedule, &target).unwrap();
    for end in (0..bytes.len()).step_by(97) {
        let _ = decode(&bytes[..end], &target);
    }
    let mut state = 1u64;
    let mut refused = 0;
    for _ in 0..2000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut broken = bytes.clone();
        broken[(state >> 33) as usize % bytes.len()] ^= (state >> 20) as u8 | 1;
        refused += usize::from(decode(&broken, &target).ok().as_ref() != Some(&schedule));
    }
    assert!(refused > 1000, "most changes are seen; {refused} were");
}

#[test]
fn the_cache_finds_what_it_was_given() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("blobs");
    let _ = std::fs::remove_dir_all(&folder);
    let cache = Cache::open(&folder).unwrap();
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
    std::fs::write(folder.join(format!("{}.elf", entry.key)), b"no blob").unwrap();
    let error = cache.get(&all[0].0, &target).unwrap_err().to_string();
    assert!(error.contains(&entry.key) && error.contains("no blob"), "{error}");
}
