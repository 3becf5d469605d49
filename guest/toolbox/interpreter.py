# Runs code in one namespace, request after request. Requests are lines of JSON on descriptor 3, answers on descriptor 4. The
# code's own output goes to descriptors 1 and 2, which the daemon reads.
import json
import linecache
import os
import signal
import sys
import traceback

requests = os.fdopen(3, "r", encoding="utf-8", errors="surrogatepass")
answers = os.fdopen(4, "w", encoding="utf-8", errors="surrogatepass")
os.set_inheritable(3, False)
os.set_inheritable(4, False)
sys.path.insert(0, "")
space = {"__name__": "__main__", "__builtins__": __builtins__}
number = 0


def run(request):
    name = "<cell %d>" % number
    code = request["code"]
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    before = dict(os.environ)
    os.environ.update(request.get("envs") or {})
    try:
        exec(compile(code, name, "exec"), space)
    except SystemExit as ended:
        if ended.code not in (None, 0):
            return {"name": "SystemExit", "value": str(ended.code), "traceback": ""}
    except KeyboardInterrupt:
        return {"interrupted": True}
    except BaseException as error:
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        text = "".join(traceback.format_exception(type(error), error, frames))
        return {"name": type(error).__name__, "value": str(error), "traceback": text}
    finally:
        if request.get("envs"):
            os.environ.clear()
            os.environ.update(before)
    return {}


while True:
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        line = requests.readline()
        if not line:
            break
        number += 1
        request = json.loads(line)
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            answer = run(request)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        except KeyboardInterrupt:
            answer = {"interrupted": True}
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        answer["number"] = request["number"]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    except KeyboardInterrupt:
        pass
