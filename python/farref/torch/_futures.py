"""PyTorch's ``collect_all`` for futures whose errors are Python's: it ends with the first of them, as with its own."""

import threading


def collector(own):
    """What takes the place of torch._C._collect_all, which ``own`` is."""

    def collect_all(futures):
        import torch

        if not any(isinstance(future, torch.futures.Future) for future in futures):
            return own(futures)
        collected = torch.futures.Future()
        lock = threading.Lock()
        left = len(futures)

        def ended(future):
            nonlocal left
            try:
                future.value()
                error = None
            except Exception as raised:
                error = raised
            with lock:
                left -= 1
                last, is_over = left == 0, left < 0
                if error is not None:
                    left = -1
            if is_over:
                return
            if error is not None:
                collected.set_exception(error)
            elif last:
                collected.set_result(futures)

        for future in futures:
            future.add_done_callback(ended)
        return collected

    return collect_all
