"""Actors and a learner: actors play with the learner's policy, the learner improves it by what they bring back.

    python python/examples/actor_learner.py

A game of one move: of three levers, each pays with a chance of its own. One of the actors is killed on the way; the learner goes
on with the others.
"""

import os
import random
import signal

import farref

CHANCES = [0.2, 0.5, 0.8]


def play(policy, games, seed):
    """Plays with the policy that the reference leads to. Returns what was tried, and what it paid."""
    values = policy.to_here()
    chance = random.Random(seed)
    played = []
    for _ in range(games):
        if chance.random() < 0.3:
            lever = chance.randrange(len(values))
        else:
            lever = values.index(max(values))
        played.append((lever, float(chance.random() < CHANCES[lever])))
    return played


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def learn(me):
    actors = [peer for peer in me.peers() if not peer.is_me]
    values = [0.5] * len(CHANCES)
    policy = me.rref(values)  # a value of this worker's: others hold references to it
    for turn in range(30):
        if turn == 10:
            actors[0].start(die)
        games = {actor: actor.start(play, policy, 20, seed=100 * turn + actor.rank) for actor in actors}
        for actor, played in games.items():
            try:
                for lever, paid in played.result():
                    values[lever] += 0.05 * (paid - values[lever])
            except farref.PeerLost:
                print(f"{actor.name} died: on without it")
                actors.remove(actor)
    print("values of the levers:", [round(value, 1) for value in values])
    assert values.index(max(values)) == 2 and len(actors) == 2
    del policy, games


def main():
    """The learner is this process; actors are started by it, so that one may die without ending the program."""
    import multiprocessing
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        place = f"file://{folder}/store"
        context = multiprocessing.get_context("spawn")
        actors = [context.Process(target=act, args=(rank, place)) for rank in range(1, 4)]
        for actor in actors:
            actor.start()
        with farref.join(name="learner", rank=0, world_size=4, rendezvous=place, peer_timeout=3) as me:
            learn(me)
        for actor in actors:
            actor.join()


def act(rank, place):
    farref.join(name=f"actor{rank}", rank=rank, world_size=4, rendezvous=place, peer_timeout=3).shutdown()


if __name__ == "__main__":
    main()
