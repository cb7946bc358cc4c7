//! What watchers are told, whatever the order in which things happen and are read.

use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Wake;

use proptest::prelude::*;

use super::*;

fn name(node: NodeId) -> Option<Arc<str>> {
    Some(Arc::from(format!("worker{}", node.worker.0)))
}

fn unknown(_: NodeId) -> Option<Arc<str>> {
    None
}

fn read(watcher: &Watcher) -> Option<MemberNews> {
    match watcher.poll_next(Waker::noop()) {
        Poll::Ready(news) => news,
        Poll::Pending => None,
    }
}

fn read_all(watcher: &Watcher) -> Vec<MemberNews> {
    std::iter::from_fn(|| read(watcher)).collect()
}

fn joined(node: NodeId) -> MemberNews {
    MemberNews::Joined(node, name(node).unwrap_or_default())
}

fn gone(node: NodeId, departure: Departure) -> MemberNews {
    MemberNews::Gone(node, name(node).unwrap_or_default(), departure)
}

fn nobody() -> std::iter::Empty<NodeId> {
    std::iter::empty()
}

/// Counts how often it is woken.
#[derive(Default)]
struct Counter(AtomicU32);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn wa_2_who_came_and_went_unread_is_told_as_nothing() {
    let watchers = Watchers::default();
    let (_, watcher) = watchers.watch(nobody(), name);
    let [first, second] = [NodeId::new(1, 1), NodeId::new(1, 2)];
    watchers.joined(first, name).wake();
    watchers.gone(first, Departure::Died).wake();
    assert_eq!(read_all(&watcher), [MemberNews::Complete]);
    watchers.joined(second, name).wake();
    assert_eq!(read_all(&watcher), [joined(second)]);
}

#[test]
fn wa_4_a_life_is_told_when_its_name_is_known_and_not_at_all_if_it_goes_before() {
    let watchers = Watchers::default();
    let (_, watcher) = watchers.watch(nobody(), name);
    let [stays, goes] = [NodeId::new(1, 1), NodeId::new(2, 1)];
    for node in [stays, goes] {
        watchers.joined(node, unknown).wake();
    }
    assert_eq!(read_all(&watcher), [MemberNews::Complete]);
    watchers.gone(goes, Departure::Left).wake();
    for node in [stays, goes] {
        watchers.named(node, &name(node).unwrap_or_default()).wake();
    }
    assert_eq!(read_all(&watcher), [joined(stays)]);
}

#[test]
fn wa_4_it_is_complete_when_all_of_the_beginning_are_told_or_gone() {
    let watchers = Watchers::default();
    let [known, stays, goes, comes] = [1, 2, 3, 4].map(|worker| NodeId::new(worker, 1));
    let name_of = |node| (node == known).then(|| name(node)).flatten();
    let (_, watcher) = watchers.watch([known, stays, goes].into_iter(), name_of);
    watchers.joined(comes, name).wake();
    assert_eq!(read_all(&watcher), [joined(known), joined(comes)]);
    watchers.gone(goes, Departure::Died).wake();
    assert_eq!(read_all(&watcher), []);
    watchers
        .named(stays, &name(stays).unwrap_or_default())
        .wake();
    assert_eq!(read_all(&watcher), [joined(stays), MemberNews::Complete]);

    let (_, watcher) = watchers.watch([goes].into_iter(), unknown);
    assert_eq!(read_all(&watcher), []);
    watchers.gone(goes, Departure::Left).wake();
    assert_eq!(read_all(&watcher), [MemberNews::Complete]);
}

/// A lost wake-up would be a watcher that sleeps though there is something to tell.
#[test]
fn whoever_sleeps_is_woken_once_there_is_something_to_tell() {
    let watchers = Watchers::default();
    let (_, watcher) = watchers.watch(nobody(), name);
    assert_eq!(read_all(&watcher), [MemberNews::Complete]);
    let counter = Arc::new(Counter::default());
    let waker = Waker::from(Arc::clone(&counter));
    let woken = || counter.0.load(Ordering::Relaxed);
    let node = NodeId::new(1, 1);

    assert!(watcher.poll_next(&waker).is_pending());
    watchers.joined(node, unknown).wake();
    assert_eq!(woken(), 0, "there is nothing to tell without a name");
    watchers.named(node, &name(node).unwrap_or_default()).wake();
    assert_eq!(woken(), 1);
    assert_eq!(read_all(&watcher), [joined(node)]);

    assert!(watcher.poll_next(&waker).is_pending());
    watchers.gone(node, Departure::Died).wake();
    assert_eq!(woken(), 2);
    assert_eq!(read_all(&watcher), [gone(node, Departure::Died)]);

    assert!(watcher.poll_next(&waker).is_pending());
    watchers.end(WorkerEnd::Left).wake();
    assert_eq!(woken(), 3);
    watchers.end(WorkerEnd::Stopped).wake();
    assert_eq!(read_all(&watcher), [MemberNews::Ended(WorkerEnd::Left)]);
    assert_eq!(watcher.poll_next(&waker), Poll::Ready(None));
}

#[test]
fn wa_5_who_does_not_watch_any_more_leaves_nothing_behind() {
    let watchers = Watchers::default();
    let node = NodeId::new(1, 1);
    let (key, watcher) = watchers.watch([node].into_iter(), name);
    let [one, other] = [watchers.await_end(node), watchers.await_end(node)];
    drop((watcher, one, other));
    watchers.unwatch(key);
    watchers.stop_waiting(node);
    assert_eq!(lock(&watchers.0).lives.len(), 1, "another still waits");
    watchers.stop_waiting(node);
    let all = lock(&watchers.0);
    assert!(all.watchers.is_empty() && all.lives.is_empty());
}

#[test]
fn whoever_comes_after_the_end_is_told_of_it() {
    let watchers = Watchers::default();
    watchers.end(WorkerEnd::Evicted).wake();
    let (_, watcher) = watchers.watch(nobody(), name);
    let ended = MemberNews::Ended(WorkerEnd::Evicted);
    assert_eq!(read_all(&watcher), [MemberNews::Complete, ended]);
    assert!(watchers.await_end(NodeId::new(1, 1)).is_none());
}

/// What happens to a worker, or whether a watcher reads something.
#[derive(Clone, Copy, Debug)]
enum Step {
    Join(u32, bool),
    Name(u32),
    Go(u32, Departure),
    Read(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let worker = 0u32..3;
    let departure = prop_oneof![Just(Departure::Left), Just(Departure::Died)];
    prop_oneof![
        (worker.clone(), any::<bool>()).prop_map(|(worker, named)| Step::Join(worker, named)),
        worker.clone().prop_map(Step::Name),
        (worker, departure).prop_map(|(worker, how)| Step::Go(worker, how)),
        (1u8..4).prop_map(Step::Read),
    ]
}

proptest! {
    /// WA-1, WA-2, WA-3: whatever happens, and however slowly it is read.
    #[test]
    fn wa_1_what_is_told_agrees_with_what_has_happened(steps in prop::collection::vec(step(), 0..60)) {
        let watchers = Watchers::default();
        let (_, watcher) = watchers.watch(nobody(), name);
        // Of each worker: its latest life, whether that lives, whether its name is known.
        let mut now = [(0u32, false, false); 3];
        let mut went = BTreeMap::new();
        // What the watcher believes.
        let mut told = BTreeMap::new();
        let mut latest = BTreeMap::new();
        let node = |worker: u32, life: u32| NodeId::new(worker, life);
        let mut believe = |news: MemberNews, went: &BTreeMap<NodeId, Departure>| match news {
            MemberNews::Joined(node, _) => {
                assert!(told.insert(node.worker, node).is_none(), "the life before is not over");
                assert!(latest.insert(node.worker, node) < Some(node), "lives in their order");
            }
            MemberNews::Gone(node, _, how) => {
                assert_eq!(told.remove(&node.worker), Some(node));
                assert_eq!(went.get(&node), Some(&how));
            }
            MemberNews::Complete => {}
            MemberNews::Ended(_) => panic!("it has not ended"),
        };
        for step in steps {
            match step {
                Step::Join(worker, named) => {
                    let (life, lives, is_named) = &mut now[worker as usize];
                    if !*lives {
                        (*life, *lives, *is_named) = (*life + 1, true, named);
                        let name_of = |node| name(node).filter(|_| named);
                        watchers.joined(node(worker, *life), name_of).wake();
                    }
                }
                Step::Name(worker) => {
                    let (life, lives, is_named) = &mut now[worker as usize];
                    if *lives {
                        *is_named = true;
                        let node = node(worker, *life);
                        watchers.named(node, &name(node).unwrap_or_default()).wake();
                    }
                }
                Step::Go(worker, how) => {
                    let (life, lives, _) = &mut now[worker as usize];
                    if std::mem::take(lives) {
                        let node = node(worker, *life);
                        went.insert(node, how);
                        watchers.gone(node, how).wake();
                    }
                }
                Step::Read(times) => {
                    for news in (0..times).map_while(|_| read(&watcher)) {
                        believe(news, &went);
                    }
                }
            }
            let unread = lock(&watcher.0);
            assert!(unread.workers.len() <= 3 && unread.news.len() <= 4, "{unread:?}");
        }
        for news in read_all(&watcher) {
            believe(news, &went);
        }
        let known: Vec<NodeId> = told.into_values().collect();
        let alive = (0..).zip(now).filter(|(_, (_, lives, named))| *lives && *named);
        let alive: Vec<NodeId> = alive.map(|(worker, (life, ..))| node(worker, life)).collect();
        prop_assert_eq!(known, alive);
        // WA-3: nothing is kept of those who are gone and have been told so.
        let kept = lock(&watcher.0).workers.len();
        prop_assert_eq!(kept, now.iter().filter(|(_, lives, _)| *lives).count());
    }
}

#[test]
fn what_was_said_first_of_the_end_counts() {
    let watchers = Watchers::default();
    let (_, early) = watchers.watch(nobody(), name);
    watchers.end(WorkerEnd::Left).wake();
    watchers.end(WorkerEnd::Stopped).wake();
    let (_, late) = watchers.watch(nobody(), name);
    let told = [MemberNews::Complete, MemberNews::Ended(WorkerEnd::Left)];
    assert_eq!(read_all(&early), told);
    assert_eq!(read_all(&late), told);
}
