//! Images of any size, whose rows have positions along three axes: a reply depends on nothing but its prompt and its images.

use girih::{ImageGrid, ImagePatches, Request, Result, RunOptions};
use girih_tensor::Random;

use crate::image_replies::{check_same_bytes, fixture, read, seeing_session};

/// The ids before the rows of an image, for each row, and behind them, in the fixtures.
const PLACE: [u32; 3] = [124, 126, 125];

/// The fixtures: layers of one kind, to whose outputs the tower adds rows; the gated delta rule; a tower without learned
/// positions; one with windows, which are smaller at the edges of these images; embeddings of layers; and rows that see
/// each other both ways in sliding windows only.
const MODELS: [&str; 7] =
    ["qwen3_vl", "qwen3_5_vision", "qwen2_vl", "qwen2_5_vl", "gemma4_vision", "gemma4_unified", "gemma4_31b"];

/// An image of this seed; its patches down and across follow from it.
fn image(name: &str, seed: u64) -> ImagePatches {
    let (format, mut random) = (fixture(name).image_format().unwrap(), Random(seed));
    let cell = format.cell;
    let grid = ImageGrid { down: cell * (1 + seed as usize % 4), across: 3 * cell };
    ImagePatches::of_grid(random.bells(grid.patches() * format.patch_values), grid)
}

/// The tokens of an image.
fn place(name: &str, image: &ImagePatches) -> Vec<u32> {
    let rows = image.grid().unwrap().patches() / fixture(name).image_format().unwrap().cell.pow(2);
    [vec![PLACE[0]], vec![PLACE[1]; rows], vec![PLACE[2]]].concat()
}

/// A request with two images between 40 tokens, for a greedy reply of 10 tokens with their log-probabilities.
fn request(name: &str, seeds: [u64; 2]) -> Request {
    let text = |from: u32, count: u32| (from..from + count).map(|i| 3 + i * 37 % 120).collect::<Vec<u32>>();
    let images = seeds.map(|seed| image(name, seed));
    let [first, second] = &images;
    let prompt = [text(0, 17), place(name, first), text(17, 3), place(name, second), text(20, 20)].concat();
    let request = Request::new(prompt).images(images).without_text();
    request.sampling(girih::Sampling::greedy()).max_tokens(10).logprobs(5)
}

#[test]
fn images_give_the_same_bytes_in_chunks_beside_others_and_from_the_cache() -> Result<()> {
    // A chunk of 5 cuts the images of 6 and 9 rows.
    MODELS.into_iter().try_for_each(|name| check_same_bytes(name, 10, |seeds| request(name, seeds)))
}

/// The token for each row of a video in the fixtures.
const VIDEO_ROW: u32 = 127;

/// A request with a video of two groups of frames, and an image of this seed behind it.
fn with_video(name: &str, seeds: [u64; 2]) -> Request {
    let [first, second] = seeds.map(|seed| image(name, seed));
    let cell = fixture(name).image_format().unwrap().cell;
    let grid = ImageGrid { down: 2 * cell, across: 3 * cell };
    let values =
        Random(seeds[0]).bells(2 * grid.patches() * fixture(name).image_format().unwrap().patch_values);
    let video = ImagePatches::video(values, grid, [0.25, 1.25]).unwrap();
    let rows = grid.patches() / fixture(name).image_format().unwrap().cell.pow(2);
    let of_groups = |groups: usize| [vec![PLACE[0]], vec![VIDEO_ROW; groups * rows], vec![PLACE[2]]].concat();
    let video_place = match name {
        "qwen2_vl" | "qwen2_5_vl" => of_groups(2),
        _ => [of_groups(1), vec![7], of_groups(1)].concat(),
    };
    let prompt = [vec![5, 6], video_place, place(name, &first), vec![8], place(name, &second), vec![9]];
    let request = Request::new(prompt.concat()).images([video, first, second]).without_text();
    request.sampling(girih::Sampling::greedy()).max_tokens(10).logprobs(5)
}

#[test]
fn videos_give_the_same_bytes_in_chunks_beside_others_and_from_the_cache() -> Result<()> {
    MODELS.into_iter().try_for_each(|name| check_same_bytes(name, 10, |seeds| with_video(name, seeds)))
}

/// Positions in time follow from seconds in Qwen2.5-VL alone, so that a reply from the cache would be that of another rate.
#[test]
fn the_rate_of_a_video_counts_where_positions_follow_from_it() -> Result<()> {
    for (name, is_other) in [("qwen2_vl", false), ("qwen2_5_vl", true)] {
        let session = seeing_session(&fixture(name), RunOptions::default());
        let format = fixture(name).image_format()?;
        let grid = ImageGrid { down: 2 * format.cell, across: 3 * format.cell };
        let values = Random(5).bells(2 * grid.patches() * format.patch_values);
        let reply = |seconds: [f64; 2]| {
            let video = ImagePatches::video(values.clone(), grid, seconds)?;
            let text = (0..80).map(|i| 3 + i * 37 % 120).collect::<Vec<u32>>();
            let prompt = [vec![5, PLACE[0]], vec![VIDEO_ROW; 12], vec![PLACE[2]], text].concat();
            let call = Request::new(prompt).images([video]).without_text();
            let call = call.sampling(girih::Sampling::greedy()).max_tokens(4).logprobs(2);
            Ok::<_, girih::Error>(read(session.generate(call)?))
        };
        let usual = reply([0.25, 1.25])?;
        assert_eq!(reply([0.25, 9.25])? != usual, is_other, "{name}");
        assert_eq!(reply([0.25, 1.25])?, usual, "{name}: from the cache");
        let error = reply([0.0, 1e9]).map(drop);
        assert_eq!(error.is_err(), is_other, "{name}");
        if let Err(error) = error {
            assert!(error.to_string().contains("positions behind the first ones; the maximum is"), "{error}");
        }
    }
    Ok(())
}

/// transformers' towers and positions read each group of frames as an image (`get_rope_index`, `cu_seqlens`).
#[test]
fn groups_of_frames_are_read_as_images() -> Result<()> {
    let name = MODELS[0];
    let session = seeing_session(&fixture(name), RunOptions::default());
    let groups = [1, 1].map(|seed| image(name, seed));
    let grid = groups[0].grid().unwrap();
    let values = groups.iter().flat_map(|group| group.values().to_vec()).collect::<Vec<f32>>();
    let video = ImagePatches::video(values, grid, [0.0, 1.0])?;
    let prompt = [vec![2], place(name, &groups[0]), vec![5], place(name, &groups[1]), vec![6]].concat();
    let of_video: Vec<u32> =
        prompt.iter().map(|token| if *token == PLACE[1] { VIDEO_ROW } else { *token }).collect();
    let call = |prompt: &[u32], images: Vec<ImagePatches>| {
        let call = Request::new(prompt.to_vec()).images(images).without_text();
        session.generate(call.sampling(girih::Sampling::greedy()).max_tokens(6).logprobs(3))
    };
    assert_eq!(read(call(&of_video, vec![video.clone()])?), read(call(&prompt, groups.to_vec())?));
    assert_ne!(video.digest(), groups[0].digest());
    let refused = |prompt: &[u32], images: Vec<ImagePatches>, words: &str| {
        let error = call(prompt, images).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(&prompt, vec![video], "the place of an image at position 2, but a video was given for it");
    refused(&of_video, groups.to_vec(), "the place of a video at position 2, but an image was given for it");
    refused(&of_video, vec![], "the prompt has 2 places for images, but the request has 0 images");
    assert!(ImagePatches::video(vec![0.0; 5], grid, [0.0, 1.0]).is_err());
    assert!(ImagePatches::video(vec![0.0; 4], grid, [0.0, f64::NAN]).is_err());
    assert!(ImagePatches::video(vec![0.0; 4], grid, []).is_err());
    assert!(ImagePatches::video(vec![0.0; 4], grid, [1.0, 0.5]).is_err());
    Ok(())
}

/// The bug that this excludes: the model would read the embedding of the token for a video.
#[test]
fn places_of_videos_are_refused_without_videos() -> Result<()> {
    for name in ["qwen2_vl", "gemma4_vision"] {
        let session = seeing_session(&fixture(name), RunOptions::default());
        let call = Request::new(vec![2, VIDEO_ROW, 5]).without_text();
        let error = session.generate(call).unwrap_err().to_string();
        assert!(
            error.contains("the prompt has 1 place for images, but the request has 0 images"),
            "{name}: {error}"
        );
    }
    Ok(())
}

/// The bug that this excludes: equal patches in another order of lines would share rows.
#[test]
fn images_with_equal_values_and_other_sides_are_others() -> Result<()> {
    let name = MODELS[0];
    let first = image(name, 1);
    let turned = ImagePatches::of_grid(first.values(), ImageGrid { down: 6, across: 4 });
    assert_ne!(first.digest(), turned.digest());
    let session = seeing_session(&fixture(name), RunOptions::default());
    let reply = |image: &ImagePatches| {
        let call = Request::new([vec![2], place(name, image), vec![5, 6]].concat()).images([image.clone()]);
        let call = call.without_text().sampling(girih::Sampling::greedy()).max_tokens(4).logprobs(2);
        Ok::<_, girih::Error>(read(session.generate(call)?))
    };
    let expected = reply(&first)?;
    assert_ne!(reply(&turned)?, expected);
    assert_eq!(reply(&first)?, expected, "from the cache");
    Ok(())
}

#[test]
fn wrong_images_are_refused_in_a_sentence() -> Result<()> {
    let name = MODELS[0];
    let session = seeing_session(&fixture(name), RunOptions::default());
    let refused = |image: ImagePatches, words: &str| {
        let call = Request::new([vec![2], vec![PLACE[1]; 6]].concat()).images([image]).without_text();
        let error = session.generate(call).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    let values = image(name, 1).values().to_vec();
    let grid = |down, across| ImageGrid { down, across };
    refused(ImagePatches::new(values.clone()), "images of this model have any size: give the patches with");
    refused(
        ImagePatches::of_grid(values.clone(), grid(3, 8)),
        "3 x 8 patches; this model takes at most 4096, in cells",
    );
    refused(
        ImagePatches::of_grid(values.clone(), grid(2, 4096)),
        "2 x 4096 patches; this model takes at most",
    );
    refused(ImagePatches::of_grid(values.clone(), grid(0, 6)), "0 x 6 patches");
    refused(ImagePatches::of_grid(values, grid(2, 6)), "an image of 2 x 6 patches has");
    refused(image(name, 2), "the prompt has 6 image tokens at position 1; the image there has 9");
    Ok(())
}
