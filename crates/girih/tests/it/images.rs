//! Images in requests: their rows come from the image tower, and depend on nothing else.

use girih::engine::TowerInputs;
use girih::{ImagePatches, Model, Request, Result, RunOptions, Session};
use girih_tensor::Random;

use crate::image_replies::{check_same_bytes, fixture, read, seeing_session};

/// The id before the rows of an image in the fixture.
const BEGIN: u32 = 509;
/// The id for each row.
const ROW: u32 = 511;
/// The id behind the rows.
const END: u32 = 510;

fn model() -> Model {
    fixture("gemma3_vision")
}

fn session(options: RunOptions) -> Session {
    seeing_session(&model(), options)
}

/// An image of this seed.
fn image(seed: u64) -> ImagePatches {
    let (format, mut random) = (model().image_format().unwrap(), Random(seed));
    let values = format.max_patches * format.patch_values;
    ImagePatches::new(random.bells(values))
}

/// The tokens of an image.
fn place() -> Vec<u32> {
    [vec![BEGIN], vec![ROW; model().image_format().unwrap().rows()], vec![END]].concat()
}

/// A prompt with two images between 40 tokens.
fn prompt() -> Vec<u32> {
    let text = |from: u32, count: u32| (from..from + count).map(|i| 3 + i * 37 % 500).collect::<Vec<u32>>();
    [text(0, 17), place(), text(17, 3), place(), text(20, 20)].concat()
}

/// A request for a greedy reply of 12 tokens with their log-probabilities.
fn request(images: [u64; 2]) -> Request {
    let request = Request::new(prompt()).images(images.map(image)).without_text();
    request.sampling(girih::Sampling::greedy()).max_tokens(12).logprobs(5)
}

#[test]
fn images_give_the_same_bytes_in_chunks_beside_others_and_from_the_cache() -> Result<()> {
    check_same_bytes("gemma3_vision", 12, request)
}

/// No chunk has to hold all rows of a tile: they do not attend to each other both ways.
#[test]
fn tiles_give_the_same_bytes_in_chunks_and_from_the_cache() -> Result<()> {
    let model = fixture("idefics3");
    let format = model.image_format()?;
    let size = format.max_patches * format.patch_values;
    let picture = |last: u64| {
        let images = [1, 2, last].map(|seed| Random(seed).bells(size)).concat();
        ImagePatches::tiled(images, [1, 2])
    };
    let tokens =
        |tiles: u32| (0..tiles).flat_map(|tile| [vec![20 + tile], vec![511; format.rows()]].concat());
    let request = |last: u64| {
        let prompt: Vec<u32> = [1, 5].into_iter().chain(tokens(3)).chain([7, 8]).collect();
        let request = Request::new(prompt).images([picture(last)?]).without_text();
        Ok::<_, girih::Error>(request.max_tokens(6).logprobs(3))
    };
    let session = |chunk| seeing_session(&model, RunOptions { chunk, ..RunOptions::default() });
    let large = session(512);
    let (expected, other) = (read(large.generate(request(3)?)?), read(large.generate(request(4)?)?));
    assert_ne!(expected, other, "the whole picture counts");
    for chunk in [3, 7] {
        let small = session(chunk);
        for turn in ["first", "from the cache"] {
            assert_eq!(read(small.generate(request(4)?)?), other, "chunks of {chunk}, {turn}");
            assert_eq!(read(small.generate(request(3)?)?), expected, "chunks of {chunk}, {turn}");
        }
    }
    let few = Request::new(tokens(2).collect::<Vec<u32>>()).images([picture(3)?]).without_text();
    let error = large.generate(few).unwrap_err().to_string();
    assert!(error.contains("2 places for images, but the request has 3 images"), "{error}");
    assert!(
        ImagePatches::tiled(vec![0.0; 5], [1, 2]).is_err() && ImagePatches::tiled(vec![], [1, 2]).is_err()
    );
    Ok(())
}

/// The tower would take long for a request that is refused, or that nobody waits for.
#[test]
fn the_tower_runs_only_for_requests_that_are_valid_and_wanted() -> Result<()> {
    let session = session(RunOptions::default());
    let nan = || ImagePatches::new(vec![f32::NAN; image(1).values().len()]);
    let call = || Request::new([vec![2], place()].concat()).images([nan()]).without_text();
    let error = |request| session.generate(request).unwrap_err();
    assert!(error(call()).to_string().contains("NaN or infinity"), "the tower refuses it");
    let sentence = error(call().max_tokens(1_000_000)).to_string();
    assert!(sentence.contains("shorten the prompt"), "{sentence}");
    let sentence = error(call().prompt_logprobs(1)).to_string();
    assert!(sentence.contains("no log-probabilities of its own"), "{sentence}");
    assert_eq!(error(call().while_wanted(|| false)).kind(), girih::ErrorKind::Cancelled);
    Ok(())
}

/// A reply that follows from the rows of the tower alone, which the caller gives.
#[test]
fn rows_of_the_tower_are_those_that_the_text_model_reads() -> Result<()> {
    let model = model();
    let mut tower = girih::TowerPlan::new(&model, &RunOptions::default())?.load(|_| {})?;
    let files = model.tower_files()?;
    let grid = files.tower.only_grid().unwrap();
    let positions = files.inputs(grid)?.positions;
    let mut rows = |seed| {
        let image = image(seed);
        let inputs = TowerInputs { patches: image.values(), positions: &positions, ..TowerInputs::default() };
        Ok::<_, girih::Error>(
            tower.rows_of(inputs, [grid.patches(), files.tower.rows(grid)], Vec::new())?.rows,
        )
    };
    let (first, again, second) = (rows(1)?, rows(1)?, rows(2)?);
    assert_eq!(first, again, "a run leaves nothing for the next one");
    let max = |rows: &[f32]| rows.iter().fold(0.0f32, |max, value| max.max(value.abs()));
    assert!(max(&first) > 0.0 && first != second);
    Ok(())
}

#[test]
fn wrong_images_are_refused_in_a_sentence() -> Result<()> {
    let refused = |session: &Session, request: Request, words: &str| {
        let error = session.generate(request).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    let session = session(RunOptions::default());
    let few = || Request::new(prompt()).images([image(1)]).without_text();
    refused(&session, few(), "has 2 places for images, but the request has 1 image; give one for each place");
    refused(&session, few().images([image(1), image(2)]), "the request has 3 images");
    refused(&session, Request::new(prompt()).without_text(), "the request has 0 images");
    let short = ImagePatches::new(vec![0.0; 5]);
    let call = Request::new([vec![2], place()].concat()).images([short]).without_text();
    refused(&session, call, "an image of 4 x 4 patches has 5 values; this model needs");
    let nan = ImagePatches::new(vec![f32::NAN; image(1).values().len()]);
    let call = Request::new([vec![2], place()].concat()).images([nan]).without_text();
    refused(&session, call, "NaN or infinity");
    let cut = Request::new(vec![2, BEGIN, ROW, ROW, END]).images([image(1)]).without_text();
    refused(&session, cut, "the prompt has 2 image tokens at position 2; the image there has 4");
    let without = model().start()?;
    refused(&without, few(), "the model was loaded without its image tower");
    let text = Model::open("stories260k")?;
    refused(&text.start()?, Request::new("a").images([image(1)]), "reads no images");
    let error = text.plan(RunOptions { images: true, ..RunOptions::default() }).unwrap_err().to_string();
    assert!(error.contains("a model of architecture llama reads no images"), "{error}");
    let small = RunOptions { images: true, chunk: 5, sequences: 3, ..RunOptions::default() };
    let error = model().plan(small).unwrap_err().to_string();
    assert!(error.contains("an image has 4 rows, which one step runs, but a step has room for 3"), "{error}");
    Ok(())
}

/// The plan has the bytes of the tower before it is loaded.
#[test]
fn the_tower_is_a_part_of_the_plan() -> Result<()> {
    let with = model().plan(RunOptions { images: true, ..RunOptions::default() })?;
    let without = model().plan(RunOptions { given_rows: true, ..RunOptions::default() })?;
    let tower = with.tower().expect("it was planned with images").memory();
    assert_eq!(with.memory(), without.memory().plus(tower));
    assert!(tower.host.weights > 0 && tower.host.scratch > 0);
    Ok(())
}
