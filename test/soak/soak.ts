/** One sandbox through its life cycle repeatedly, with data in it that would show the loss of a byte. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { connect } from 'node:net';
import type { SandboxRecord } from '@releap/contract';
import { eventually } from '@releap/testing/eventually';
import type { Service } from '@releap/testing/service';

const WORKLOAD = new URL('workload.py', import.meta.url);
const PORT = 8080;
const CONNECTIONS = 5;
/** What a clock may be off by. */
const CLOCK_SECONDS = 5;
/** A Python under emulation. */
const PATIENCE_MS = 180_000;

/** The status that the workload reports (workload.py). */
interface WorkloadStatus {
  pid: number;
  nonce: string;
  acked: number;
  reads: number;
  files: number;
  open: number;
  pings: number;
  errors: string[];
}

/** What workload.py has found on the disk. */
interface Verified {
  rows: number;
  hash: string;
  files: number;
}

export interface SoakOptions {
  pauses: number;
  stops: number;
  /** Told after each cycle. */
  onProgress?: (line: string) => void;
}

export interface SoakResult {
  rows: number;
  files: number;
  /** All that it and its forks have had. */
  addresses: (string | null)[];
  drawn: number;
  /** From the call to the status, milliseconds, sorted. */
  ms: Record<'pause' | 'resume' | 'stop' | 'start', number[]>;
}

/** @throws when anything is lost, wrong, or drawn twice */
export async function soak(
  service: Service,
  { pauses, stops, onProgress }: SoakOptions,
): Promise<SoakResult> {
  const soaking = new Soak(service);
  await soaking.begin();
  for (let cycle = 1; cycle <= pauses; cycle += 1) {
    onProgress?.(`pause ${cycle} of ${pauses}: ${await soaking.pauseAndResume()}`);
  }
  for (let cycle = 1; cycle <= stops; cycle += 1) {
    onProgress?.(`stop ${cycle} of ${stops}: ${await soaking.stopAndStart()}`);
  }
  onProgress?.(`forks: ${await soaking.forks()}`);
  return await soaking.end();
}

class Soak {
  readonly #service: Service;
  readonly #ms: SoakResult['ms'] = { pause: [], resume: [], stop: [], start: [] };
  readonly #drawn = new Set<string>();
  readonly #addresses = new Set<string | null>();
  #draws = 0;
  #id = '';
  /** The last row that was checked. */
  #verified: Verified = { rows: 0, hash: '', files: 0 };

  constructor(service: Service) {
    this.#service = service;
  }

  async begin(): Promise<void> {
    const { id } = await this.#service.create({
      image: 'debian',
      name: 'soak',
      cpu: 0.5,
      mem_mib: 512,
      scratch_mib: 1024,
      persistent: true,
      ports: [{ vm_port: PORT }],
    });
    this.#id = id;
    const program = (await readFile(WORKLOAD)).toString('base64');
    await this.#run(`echo ${program} | base64 -d > /workload.py
      mkdir -p /data; head -c 2000000 /dev/urandom > /data/static; sha256sum /data/static > /static.sum`);
    await this.#work();
  }

  async pauseAndResume(): Promise<string> {
    const before = await this.#workloadStatus();
    await this.#move('pause', 'paused');
    await this.#move('resume', 'running');
    await this.#looksRight();
    const after = await this.#awaitProgress();
    assert.deepEqual([after.pid, after.nonce], [before.pid, before.nonce], 'the process is another one');
    assert.ok(after.acked >= before.acked && after.pings >= before.pings, 'the process has gone back');
    assert.equal(await this.#run('sha256sum -c /dev/shm/sum'), '/dev/shm/static: OK\n');
    await this.#verify(after.acked);
    return `${after.acked} rows, ${after.files} files, ${after.pings} round trips`;
  }

  async stopAndStart(): Promise<string> {
    const { acked } = await this.#awaitProgress();
    await this.#move('stop', 'stopped');
    await this.#move('start', 'running');
    await this.#looksRight();
    await this.#verify(acked);
    await this.#work();
    return `${acked} rows were acknowledged, ${this.#verified.rows} are there`;
  }

  /** Two of the running sandbox: each has all of it, and none draws the random numbers of another. */
  async forks(): Promise<string> {
    const source = this.#id;
    const { nonce } = await this.#awaitProgress();
    const children: string[] = [];
    for (const name of ['one', 'two']) {
      const { body } = await this.#service.call<{ vm_id: string }>('POST', `/vms/${source}/fork`, { name });
      children.push(body.vm_id);
      await this.#until(body.vm_id, 'running');
    }
    const verified = this.#verified;
    for (const child of children) {
      this.#id = child;
      await this.#looksRight();
      assert.equal((await this.#awaitProgress()).nonce, nonce);
      await this.#verify(verified.rows);
      this.#verified = verified;
    }
    for (const child of children) await this.#service.remove(child);
    this.#id = source;
    await this.#looksRight();
    return `${this.#drawn.size} draws, all different`;
  }

  async end(): Promise<SoakResult> {
    const { acked } = await this.#awaitProgress();
    this.#verified = { rows: 0, hash: '', files: 0 };
    await this.#verify(acked);
    assert.equal(await this.#run('sha256sum -c /static.sum'), '/data/static: OK\n');
    assert.equal(this.#drawn.size, this.#draws, 'random numbers came twice');
    await this.#service.remove(this.#id);
    for (const list of Object.values(this.#ms)) list.sort((a, b) => a - b);
    const { rows, files } = this.#verified;
    return { rows, files, addresses: [...this.#addresses], drawn: this.#drawn.size, ms: this.#ms };
  }

  async #move(verb: keyof SoakResult['ms'], status: string): Promise<void> {
    const startedAt = performance.now();
    const answer = await this.#service.call('POST', `/vms/${this.#id}/${verb}`);
    assert.equal(answer.status, 200, JSON.stringify(answer.body));
    await this.#until(this.#id, status);
    this.#ms[verb].push(Math.round(performance.now() - startedAt));
  }

  async #until(id: string, status: string): Promise<SandboxRecord> {
    return await eventually(
      `${id} is ${status}`,
      async () => {
        const path = `/vms/${id}?wait_exact=${status}&timeout_ms=30000`;
        const { body } = await this.#service.call<SandboxRecord>('GET', path);
        if (body.status === status && body.error === null) return body;
        throw new Error(`it is ${body.status}: ${body.error}`);
      },
      PATIENCE_MS,
    );
  }

  /** Starts the workload, and puts something into memory that must stay as it is. */
  async #work(): Promise<void> {
    await this.#run(`head -c 2000000 /dev/urandom > /dev/shm/static; sha256sum /dev/shm/static > /dev/shm/sum
      nohup python3 /workload.py run < /dev/null > /workload.log 2>&1 &`);
    await this.#awaitProgress();
  }

  /** The clock is right, and random numbers are new. */
  async #looksRight(): Promise<void> {
    const { vm_ip } = await this.#until(this.#id, 'running');
    this.#addresses.add(vm_ip ?? null);
    const asked = Date.now() / 1000;
    const said = Number(await this.#run('date +%s.%N'));
    const answered = Date.now() / 1000;
    assert.ok(
      said > asked - CLOCK_SECONDS && said < answered + CLOCK_SECONDS,
      `its clock says ${said}, and it was between ${asked} and ${answered}`,
    );
    const [bytes = '', uuid = ''] = (
      await this.#run('head -c 32 /dev/urandom | sha256sum; cat /proc/sys/kernel/random/uuid')
    ).split('\n');
    for (const draw of [bytes, uuid]) {
      this.#draws += 1;
      this.#drawn.add(draw);
    }
  }

  /** All of the workload does: rows, reads, files and every connection. */
  async #awaitProgress(): Promise<WorkloadStatus> {
    let first: WorkloadStatus | undefined;
    return await eventually(
      'the workload continues',
      async () => {
        const now = await this.#workloadStatus();
        assert.deepEqual(now.errors, []);
        first ??= now;
        const { acked, reads, pings } = first;
        const moves = now.acked > acked && now.reads > reads && now.pings > pings;
        return moves && now.files > 0 && now.open === CONNECTIONS ? now : undefined;
      },
      PATIENCE_MS,
    );
  }

  /** From outside, through the port that is published: a new connection each time, as addresses change. */
  async #workloadStatus(): Promise<WorkloadStatus> {
    return await eventually(
      'the workload answers',
      async () => {
        const { body } = await this.#service.call<SandboxRecord>('GET', `/vms/${this.#id}`);
        const port = body.port_map?.[0]?.host_port;
        return JSON.parse(await ask(port ?? 0, 'status\n')) as WorkloadStatus;
      },
      PATIENCE_MS,
    );
  }

  /** What is on the disk is what was written, up to what was acknowledged at least. */
  async #verify(acked: number): Promise<void> {
    const { rows, hash } = this.#verified;
    this.#verified = JSON.parse(await this.#run(`python3 /workload.py verify ${rows} ${hash}`)) as Verified;
    assert.ok(
      this.#verified.rows >= acked,
      `${acked} rows were acknowledged, ${this.#verified.rows} are there`,
    );
  }

  async #run(command: string): Promise<string> {
    const { exitCode, result } = await this.#service.exec(this.#id, command);
    assert.equal(exitCode, 0, result);
    return result;
  }
}

async function ask(port: number, question: string): Promise<string> {
  return await new Promise((resolve, reject) => {
    const socket = connect(port, '127.0.0.1', () => socket.write(question));
    let text = '';
    socket.setTimeout(30_000, () => socket.destroy(new Error('no answer')));
    socket.on('data', (chunk) => {
      text += chunk.toString();
      if (text.endsWith('\n')) socket.end();
    });
    socket.on('error', reject);
    socket.on('close', () => resolve(text));
  });
}
