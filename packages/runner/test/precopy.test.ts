import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, open, readFile, rm } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import type { GuestMemory } from '../src/memory/guest-memory.ts';
import { applyPages, Precopy } from '../src/memory/precopy.ts';
import { tuning } from '../src/vmm/tuning.ts';

const LIMITS = tuning('tcg').precopy;

/** Writes numbers into a megabyte of its memory as fast as it can, until it is stopped. */
const WRITES = `$| = 1; my $m = "0" x (1 << 20); print "begun\\n";
  while (1) { $i++; substr($m, ($i * 4099) % ((1 << 20) - 8), 8) = sprintf("%08d", $i) }`;

let folder: string;
before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'releap-pc-'));
});
after(async () => {
  await rm(folder, { recursive: true, force: true });
});

/** A process whose memory is copied, as that of a VMM. */
class Writer implements AsyncDisposable {
  readonly #child: ChildProcess;
  readonly memory: GuestMemory;

  private constructor(child: ChildProcess, memory: GuestMemory) {
    this.#child = child;
    this.memory = memory;
  }

  static async start(program = WRITES): Promise<Writer> {
    const child = spawn('perl', ['-e', program], { stdio: ['pipe', 'pipe', 'inherit'] });
    await once(child.stdout, 'data');
    const maps = await readFile(`/proc/${child.pid}/maps`, 'utf8');
    const anonymous = [...maps.matchAll(/^([0-9a-f]+)-([0-9a-f]+) rw-p 0+ 00:00 0 *$/gm)].map(
      ([, from = '', to = '']) => [Number.parseInt(from, 16), Number.parseInt(to, 16)] as const,
    );
    const [address, end] = anonymous.find(([from, to]) => to - from > 1 << 20) ?? [0, 0];
    assert.ok(child.pid !== undefined && address > 0);
    return new Writer(child, { pid: child.pid, address, bytes: end - address });
  }

  async stop(): Promise<void> {
    this.#child.kill('SIGSTOP');
    while (!/^State:\tT/m.test(await readFile(`/proc/${this.memory.pid}/status`, 'utf8')));
  }

  continue(): void {
    this.#child.kill('SIGCONT');
  }

  async content(): Promise<Buffer> {
    const { pid, address, bytes } = this.memory;
    const content = Buffer.alloc(bytes);
    await using file = await open(`/proc/${pid}/mem`, 'r');
    await file.read(content, 0, bytes, address);
    return content;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const ended = once(this.#child, 'exit');
    this.#child.kill('SIGKILL');
    await ended;
  }
}

/** An empty file as large as a memory. */
async function emptyFile(name: string, { bytes }: GuestMemory): Promise<FileHandle> {
  const file = await open(join(folder, name), 'w+');
  await file.truncate(bytes);
  return file;
}

async function read(file: FileHandle): Promise<Buffer> {
  const { size } = await file.stat();
  const content = Buffer.alloc(size);
  await file.read(content, 0, size, 0);
  return content;
}

describe('a copy of the memory of a process that writes to it until it is stopped', () => {
  for (const tracked of [true, false]) {
    it(`has all of it ${tracked ? 'where the kernel tracks writes' : 'where it does not'}`, async () => {
      Precopy.tracksWrites = tracked;
      try {
        for (let round = 0; round < 10; round += 1) {
          await using writer = await Writer.start();
          await using target = await emptyFile('target', writer.memory);
          await using precopy = await Precopy.begin(writer, writer.memory, target.fd);
          assert.equal(await precopy.approach(LIMITS), true);
          await writer.stop();
          await precopy.take();
          assert.ok((await writer.content()).equals(await read(target)), 'a page is missing');
        }
      } finally {
        Precopy.tracksWrites = true;
      }
    });
  }

  it('is followed by copies of what was written since, which complete it', async (context) => {
    await using writer = await Writer.start();
    await using base = await emptyFile('base', writer.memory);
    await using changes = await emptyFile('changes', writer.memory);
    let latest = await Precopy.begin(writer, writer.memory, base.fd);
    await latest.approach(LIMITS);
    await writer.stop();
    await latest.take();
    await latest[Symbol.asyncDispose]();
    for (let round = 0; round < 5; round += 1) {
      writer.continue();
      await using next: Precopy | undefined = await latest.follow(writer.memory, changes.fd);
      if (next === undefined) return context.skip('the kernel cannot track writes');
      await next.approach(LIMITS);
      await writer.stop();
      await next.take();
      latest = next;
    }
    // Another process with the same initial memory, as the child of a fork.
    await using child = await Writer.start('$| = 1; my $m = "1" x (1 << 20); print "begun\\n"; <STDIN>');
    const { bytes } = child.memory;
    assert.equal(bytes, writer.memory.bytes);
    await using whole = await open(join(folder, 'base'), 'r');
    const memory = await open(`/proc/${child.memory.pid}/mem`, 'r+');
    await memory.write(await read(whole), 0, bytes, child.memory.address);
    await memory.close();
    await applyPages(join(folder, 'changes'), child.memory);
    assert.ok((await child.content()).equals(await writer.content()), 'a page is missing');
  });

  it('is not followed once another copy has reset what is tracked, or when it is not complete', async () => {
    await using writer = await Writer.start();
    await using target = await emptyFile('target', writer.memory);
    await using one = await Precopy.begin(writer, writer.memory, target.fd);
    assert.equal(await one.follow(writer.memory, target.fd), undefined);
    await one.take();
    await using other = await Precopy.begin(writer, writer.memory, target.fd);
    assert.equal(await one.follow(writer.memory, target.fd), undefined);
    await other.take();
    Precopy.tracksWrites = false;
    try {
      await using untracked = await Precopy.begin(writer, writer.memory, target.fd);
      await untracked.take();
      assert.equal(await untracked.follow(writer.memory, target.fd), undefined);
    } finally {
      Precopy.tracksWrites = true;
    }
    assert.equal(await other.follow(writer.memory, target.fd), undefined);
  });
});

it('says so when the process is not there', async () => {
  await using target = await open('/dev/null', 'r+');
  const missing = { pid: 4_194_304, address: 4096, bytes: 4096 };
  await assert.rejects(
    Precopy.begin({}, missing, target.fd),
    /memory of a running micro-VM could not be copied/,
  );
});
