//! The commands that feed the shim channels.

use super::transfer::ShimTask;
use crate::form::schedule::{Affine, Channel, Direction, ProcessorCommand, Push};

/// The tasks of one shim channel, in order.
pub(super) struct ShimFeed {
    /// The channel.
    pub channel: Channel,
    /// The descriptors of the chunks that are sent once, before the others.
    pub ahead: Vec<u8>,
    /// The descriptors that the tasks alternate between.
    pub ids: Vec<u8>,
    /// The tasks.
    pub tasks: Vec<ShimTask>,
}

/// Returns the commands of all channels. The tasks of the channels are interleaved
/// in proportion to their numbers, so that no channel's full queue delays another;
/// at the end the commands wait for all tasks. A descriptor is only rewritten after
/// the task that uses it has ended.
///
/// A resident launch is short, so its operands are pushed first: they have the longer way. At its end, the commands
/// wait for results only: each core receives all
/// of its operands before it sends its last result, so the tasks of operands have ended.
/// The simulator reports a task that has not.
pub(super) fn commands(feeds: Vec<ShimFeed>, resident: bool) -> Vec<ProcessorCommand> {
    let mut commands = Vec::new();
    // In other launches, result buffers can drain before the cores receive input.
    let (first, second): (Vec<ShimFeed>, Vec<ShimFeed>) =
        feeds.into_iter().partition(|feed| (feed.channel.direction == Direction::S2mm) != resident);
    let feeds: Vec<ShimFeed> = first.into_iter().chain(second).collect();
    let mut tasks: Vec<(usize, &ShimFeed)> = Vec::new();
    for feed in &feeds {
        tasks.extend((0..feed.tasks.len()).map(|task| (task, feed)));
    }
    // The sort is stable: tasks at equal shares keep the order of the channels.
    tasks.sort_by(|(a, of), (b, other)| (a * other.tasks.len()).cmp(&(b * of.tasks.len())));
    let last = |feed: &ShimFeed| feed.tasks.len() - feed.ids.len().min(feed.tasks.len());
    let waits = |feed: &ShimFeed| !resident || feed.channel.direction == Direction::S2mm;
    for (task, feed) in tasks {
        for &descriptor in feed.ahead.iter().filter(|_| task == 0) {
            let (channel, offset) = (feed.channel, Affine::constant(0));
            commands.push(ProcessorCommand::Push(Push {
                channel,
                descriptor,
                offset,
                repeats: 1,
                token: false,
            }));
        }
        if task >= feed.ids.len() {
            commands.push(ProcessorCommand::Wait(feed.channel));
        }
        commands.push(ProcessorCommand::Push(Push {
            channel: feed.channel,
            descriptor: feed.ids[task % feed.ids.len()],
            offset: Affine::constant(feed.tasks[task].offset),
            repeats: feed.tasks[task].repeats,
            token: task < last(feed) || waits(feed),
        }));
    }
    for feed in feeds.iter().filter(|feed| waits(feed)) {
        commands.extend((last(feed)..feed.tasks.len()).map(|_| ProcessorCommand::Wait(feed.channel)));
    }
    commands
}
