/** A host of the real protocol that accepts every sandbox and never boots one: the VM side, left out. */
import { createHash, randomBytes } from 'node:crypto';
import { newUuid, RUNNER_JOIN_PATH, RUNNER_LINK_PATH } from '@releap/contract';
import {
  HEARTBEAT_MS,
  KIND_NAMES,
  readControlMessage,
  RUNNER_PROTOCOL,
  type RunnerMessage,
} from '@releap/contract/runner';
import { WebSocket } from 'ws';

const DEADLINE_MS = 10_000;
/** Far more than load can fill. */
const PLENTY = 100_000_000;

export class SilentRunner implements AsyncDisposable {
  readonly #socket: WebSocket;
  readonly #timer: NodeJS.Timeout;
  #ready = false;
  #seq = 0;
  /** Sandboxes that control has placed here. */
  placed = 0;

  private constructor(socket: WebSocket) {
    this.#socket = socket;
    this.#timer = setInterval(() => this.#heartbeat(), HEARTBEAT_MS);
    socket.on('message', (data) => this.#take(data as Buffer));
  }

  /** Dials the control plane and says hello; nothing is placed here before `ready`. */
  static async connect(url: string, joinToken: string): Promise<SilentRunner> {
    const id = newUuid();
    const credential = randomBytes(32).toString('base64url');
    const joined = await fetch(url + RUNNER_JOIN_PATH, {
      method: 'POST',
      headers: { authorization: `Bearer ${joinToken}`, 'content-type': 'application/json' },
      body: JSON.stringify({
        runner_id: id,
        credential_sha256: createHash('sha256').update(credential).digest('hex'),
      }),
    });
    if (!joined.ok) throw new Error(`the runner could not join: ${joined.status} ${await joined.text()}`);
    const socket = new WebSocket(url.replace('http', 'ws') + RUNNER_LINK_PATH, {
      headers: { authorization: `Bearer ${credential}` },
    });
    await new Promise<void>((resolve, reject) => {
      socket.once('open', resolve);
      socket.once('error', reject);
    });
    const runner = new SilentRunner(socket);
    const synced = new Promise<void>((resolve, reject) => {
      socket.once('message', () => resolve());
      socket.once('close', (code) => reject(new Error(`the control plane refused the runner: ${code}`)));
      setTimeout(() => reject(new Error('the control plane sent no sync')), DEADLINE_MS).unref();
    });
    const facts = { arch: 'amd64', cores: PLENTY, mem_mib: PLENTY, disk_mib: PLENTY, gpus: 0 } as const;
    runner.#send({
      type: 'hello',
      protocol: RUNNER_PROTOCOL,
      runner_id: id,
      region: 'local',
      data_url: 'http://127.0.0.1:1',
      facts: { ...facts, accelerator: 'tcg', cpu_model: 'none', vmm: 'none' },
      capabilities: [],
      kinds: [...KIND_NAMES],
    });
    await synced;
    return runner;
  }

  /** Whether the control plane may place sandboxes here from now on. */
  set ready(ready: boolean) {
    this.#ready = ready;
    this.#heartbeat();
  }

  #heartbeat(): void {
    this.#send({ type: 'heartbeat', ready: this.#ready });
  }

  #send(message: RunnerMessage): void {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }

  #take(data: Buffer): void {
    // Parsed as by a real one, or the control plane would have less load.
    const reading = readControlMessage(data.toString('utf8'));
    if (reading.outcome !== 'message' || reading.message.type !== 'desired') return;
    for (const { kind, id, generation, desired } of reading.message.items) {
      if (kind === 'sandbox') this.placed++;
      if (kind !== 'build' || desired !== 'done') continue;
      const detail = { layer_count: 1, manifest_name: `sha256:${'0'.repeat(64)}` };
      this.#send({
        type: 'report',
        seq: ++this.#seq,
        items: [{ kind: 'build', id, generation, status: 'done', detail }],
      });
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearInterval(this.#timer);
    const closed = new Promise((resolve) => this.#socket.once('close', resolve));
    this.#socket.terminate();
    await closed;
  }
}
