//! Peers that say of the membership whatever they like, in any order. A node may come to know nonsense by that, but it
//! never contradicts itself.

use super::group::*;
use super::*;
use crate::node::{Node, NodeConfig};
use crate::residue::Residue;

/// Something that happens to the node.
#[derive(Clone, Debug)]
enum Step {
    /// A peer says this, as it is.
    Hear(NodeId, Control),
    /// A peer says something about exactly what the node knows at that moment.
    Word(NodeId, Word),
    Suspect(NodeId),
    Leave,
    ShutDown,
}

#[derive(Clone, Debug)]
enum Word {
    Ask(Vec<(WorkerId, Standing)>),
    Known,
    Unlike(Digest),
    Settled,
}

impl Word {
    fn about(self, digest: Digest) -> Control {
        match self {
            Self::Ask(entries) => Control::View {
                entries,
                ask: Some(digest),
            },
            Self::Known => Control::Known(digest),
            Self::Unlike(mine) => Control::Unlike {
                asked: digest,
                mine,
            },
            Self::Settled => Control::Settled(digest),
        }
    }
}

/// Those who speak, and those who are spoken of: the node itself, its peers, later lives, strangers.
fn node(own: bool) -> impl Strategy<Value = NodeId> + Clone {
    let first = u32::from(!own);
    (first..6, 1..4_u32).prop_map(|(worker, life)| NodeId::new(worker, life))
}

fn standings() -> impl Strategy<Value = Vec<(WorkerId, Standing)>> + Clone {
    let status = prop_oneof![
        Just(Status::Joining),
        Just(Status::Alive),
        Just(Status::Left),
        Just(Status::Dead)
    ];
    // That the node itself is gone ends all, so it is seldom said.
    let about = prop_oneof![1 => node(true), 9 => node(false)];
    let standing =
        (about, status).prop_map(|(node, status)| (node.worker, Standing::of(node, status)));
    proptest::collection::vec(standing, 0..4)
}

fn step() -> impl Strategy<Value = Step> {
    let digest = (0..4_u128).prop_map(Digest);
    let word = prop_oneof![
        standings().prop_map(Word::Ask),
        Just(Word::Known),
        digest.clone().prop_map(Word::Unlike),
        Just(Word::Settled),
    ];
    let control = prop_oneof![
        4 => (standings(), proptest::option::of(digest.clone()))
            .prop_map(|(entries, ask)| Control::View { entries, ask }),
        1 => standings().prop_map(Control::Welcome),
        1 => digest.clone().prop_map(Control::Known),
        1 => (digest.clone(), digest.clone())
            .prop_map(|(asked, mine)| Control::Unlike { asked, mine }),
        1 => digest.prop_map(Control::Settled),
        1 => Just(Control::Leaving),
        1 => Just(Control::Farewell),
        1 => node(true).prop_map(Control::Suspect),
        1 => node(true).prop_map(Control::Accused),
        2 => Just(Control::Join),
        1 => any::<u32>().prop_map(|limit| Control::NoRoom { limit }),
        1 => (0..3_u64, any::<bool>(), node(true)).prop_map(|(round, all_willing, node)| {
            let waiting_for = vec![(node, Residue::default())];
            Control::Probe { round, all_willing, waiting_for }
        }),
        1 => (0..3_u64, 0..3_u64).prop_map(|(round, activity)| {
            let residue = Residue::default();
            Control::Report { round, activity, residue }
        }),
        1 => Just(Control::Finish),
    ];
    prop_oneof![
        20 => (node(false), control).prop_map(|(from, control)| Step::Hear(from, control)),
        20 => (node(false), word).prop_map(|(from, word)| Step::Word(from, word)),
        4 => node(false).prop_map(Step::Suspect),
        1 => Just(Step::Leave),
        1 => Just(Step::ShutDown),
    ]
}

proptest! {
    #![proptest_config(crate::random_cases::random_cases(200, 2000))]

    /// ME-1, D5: whatever peers say, a standing is never lowered, nobody is awaited who is gone, and no list is too long.
    #[test]
    fn no_order_of_what_peers_say_makes_a_node_contradict_itself(
        is_member in any::<bool>(),
        steps in proptest::collection::vec(step(), 0..60),
    ) {
        let me = id(A);
        let membership = match is_member {
            true => Membership::founding(me, (0..4).map(id)),
            false => Membership::joining(me),
        };
        let mut node: Node<()> = Node::new(me, membership, NodeConfig::default());
        let mut out = Outbox::new();
        let mut cut_off = BTreeSet::new();
        for step in steps {
            let before = node.membership().view().clone();
            let digest = before.digest();
            let said = match step {
                Step::Hear(from, control) => Some((from, control)),
                Step::Word(from, word) => Some((from, word.about(digest))),
                Step::Suspect(peer) => {
                    node.suspect(peer, &mut out);
                    None
                }
                Step::Leave => {
                    node.leave(&mut out);
                    None
                }
                Step::ShutDown => {
                    node.shut_down();
                    None
                }
            };
            // What a driver does: one that misbehaves is cut off, one that is gone is not listened to.
            if let Some((from, control)) = said
                && !cut_off.contains(&from)
                && !before.is_gone(from)
                && node.handle(from, control, &mut out).is_err()
            {
                cut_off.insert(from);
                node.suspect(from, &mut out);
            }
            prop_assert_eq!(node.inconsistency(), None);
            let view = node.membership().view();
            for (worker, standing) in before.standings() {
                prop_assert!(view.standing(worker) >= Some(standing), "of {:?}", worker);
            }
            while let Some((_, control)) = out.pop_control() {
                if let Control::View { entries, .. } | Control::Welcome(entries) = control {
                    prop_assert!(entries.len() <= MAX_BATCH);
                }
            }
            while out.pop_event().is_some() {}
        }
    }
}
