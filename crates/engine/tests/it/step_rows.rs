//! The rows of a step.

use girih_engine::scheduler::{ScheduledRows, SequenceProgress, StepBudget, schedule};
use girih_engine::{LEAST_PROMPT_ROWS, PromptShare, RowWork};
use girih_graph::Outputs;
use girih_graph::backend::Range32;
use girih_tensor::Random;

fn parts(sequences: &[(u32, u32)], rows: u32) -> Vec<ScheduledRows> {
    let sequences: Vec<_> = sequences.iter().map(|&(run, known)| progress(run, known, known - 1)).collect();
    schedule(&sequences, budget(rows, sequences.len() as u32))
}

fn budget(rows: u32, output_rows: u32) -> StepBudget {
    StepBudget { rows, output_rows, prompts: None }
}

fn progress(run: u32, known: u32, first_output: u32) -> SequenceProgress<'static> {
    SequenceProgress { run, known, first_output, spans: &[] }
}

fn part(sequence: usize, start: u32, end: u32, outputs: Outputs) -> ScheduledRows {
    ScheduledRows { sequence, positions: Range32 { start, end }, outputs }
}

#[test]
fn only_the_last_known_token_is_an_output_row() {
    let one = |run, known, rows| parts(&[(run, known)], rows);
    assert_eq!(one(0, 10, 4), [part(0, 0, 4, Outputs::None)]);
    assert_eq!(one(4, 10, 4), [part(0, 4, 8, Outputs::None)]);
    assert_eq!(one(8, 10, 4), [part(0, 8, 10, Outputs::Last)]);
    assert_eq!(one(0, 4, 4), [part(0, 0, 4, Outputs::Last)]);
    assert_eq!(one(10, 11, 4), [part(0, 10, 11, Outputs::Last)]);
    assert_eq!(one(0, u32::MAX, u32::MAX), [part(0, 0, u32::MAX, Outputs::Last)]);
    assert_eq!(parts(&[], 4), []);
}

#[test]
fn decode_comes_first_and_the_oldest_prompt_gets_the_remaining_rows() {
    let sequences = [(0, 100), (30, 31), (7, 9), (50, 51)];
    assert_eq!(
        parts(&sequences, 10),
        [part(0, 0, 8, Outputs::None), part(1, 30, 31, Outputs::Last), part(3, 50, 51, Outputs::Last)]
    );
    assert_eq!(
        parts(&sequences, 103),
        [
            part(0, 0, 100, Outputs::Last),
            part(1, 30, 31, Outputs::Last),
            part(2, 7, 8, Outputs::None),
            part(3, 50, 51, Outputs::Last)
        ]
    );
}

#[test]
fn chunks_of_output_rows_end_where_these_are_used_up() {
    let one = |run, first_output, output_rows| {
        schedule(&[progress(run, 10, first_output)], budget(64, output_rows))
    };
    assert_eq!(one(0, 0, 4), [part(0, 0, 4, Outputs::LastN(4))]);
    assert_eq!(one(8, 8, 4), [part(0, 8, 10, Outputs::LastN(2))]);
    assert_eq!(one(0, 0, 1), [part(0, 0, 1, Outputs::Last)]);
    assert_eq!(
        one(2, 5, 4),
        [part(0, 2, 9, Outputs::LastN(4))],
        "rows that were read before are not limited"
    );
    // Each sequence keeps an output row; the oldest prompt gets the others.
    let sequences = [progress(0, 9, 0), progress(5, 6, 5), progress(0, 9, 0), progress(3, 9, 8)];
    assert_eq!(
        schedule(&sequences, budget(64, 6)),
        [
            part(0, 0, 3, Outputs::LastN(3)),
            part(1, 5, 6, Outputs::Last),
            part(2, 0, 1, Outputs::Last),
            part(3, 3, 9, Outputs::Last)
        ]
    );
}

#[test]
fn every_reply_and_the_oldest_prompt_always_advance() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let sequences: Vec<(u32, u32)> = (0..1 + random.below(8))
            .map(|_| {
                (random.below(100) as u32, if random.below(2) == 0 { 1 } else { random.below(90) as u32 + 1 })
            })
            .map(|(run, lacks)| (run, run + lacks))
            .collect();
        let rows = sequences.len() as u32 + random.below(40) as u32;
        let parts = parts(&sequences, rows);
        assert!(parts.iter().map(ScheduledRows::count).sum::<u32>() <= rows, "seed {seed}");
        assert!(parts.is_sorted_by_key(|part| part.sequence), "seed {seed}");
        let prompt = sequences.iter().position(|(run, known)| known - run > 1);
        for (index, (run, known)) in sequences.iter().enumerate() {
            let part = parts.iter().find(|part| part.sequence == index);
            if known - run == 1 || prompt == Some(index) {
                assert_eq!(part.expect("it is scheduled").positions.start, *run, "seed {seed}");
            }
        }
        let left = rows - parts.iter().map(ScheduledRows::count).sum::<u32>();
        let lacking: u32 = sequences.iter().map(|(run, known)| known - run).sum();
        assert_eq!(
            left,
            rows.saturating_sub(lacking),
            "seed {seed}: no row stays unused while tokens remain"
        );
    }
}

#[test]
fn prompts_beside_replies_have_a_share_of_work() {
    let row = RowWork { base: 10, per_position: 1 };
    let share = |sequences: &[SequenceProgress<'_>], most| {
        let prompts = Some(PromptShare { row, most });
        schedule(sequences, StepBudget { prompts, ..budget(256, 4) })
    };
    let (reply, prompt) = (progress(50, 51, 50), progress(0, 900, 899));
    let of_reply = part(0, 50, 51, Outputs::Last);
    // The work of 60 rows from position 0 on is 600 + 1770.
    assert_eq!(share(&[reply, prompt], 2370), [of_reply, part(1, 0, 60, Outputs::None)]);
    assert_eq!(share(&[reply, prompt], 2369), [of_reply, part(1, 0, 59, Outputs::None)]);
    // Rows at later positions are more work.
    let later = progress(400, 900, 899);
    assert_eq!(share(&[reply, later], 20_000), [of_reply, part(1, 400, 446, Outputs::None)]);
    // What the oldest prompt leaves goes to the next.
    let short = progress(0, 40, 39);
    let both = [of_reply, part(1, 0, 40, Outputs::Last), part(2, 0, 30, Outputs::None)];
    assert_eq!(share(&[reply, short, prompt], 40 * 10 + 780 + 300 + 435), both);
    // The oldest prompt advances in any case, others do not.
    let least = [of_reply, part(1, 0, LEAST_PROMPT_ROWS, Outputs::None)];
    assert_eq!(share(&[reply, prompt, prompt], 0), least);
    // Nobody waits for a step without replies.
    assert_eq!(share(&[prompt], 0), [part(0, 0, 256, Outputs::None)]);
    // A span runs whole, however much work it is.
    let spans = [Range32 { start: 0, end: 100 }];
    let image = SequenceProgress { spans: &spans, ..prompt };
    assert_eq!(share(&[reply, image], 0), [of_reply, part(1, 0, 100, Outputs::None)]);
}
