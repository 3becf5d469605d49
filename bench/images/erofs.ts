/**
 * `node bench/images/erofs.ts --mkfs PROGRAM [--layers FILE,FILE,…] [--rounds N]`: root images that we make beside those that
 * `mkfs.erofs` (1.8 or newer) makes of the same layers, as decision 0070 has them. The last of the layers is the one that a second
 * image does not share; without `--layers` they are made on the spot.
 */
import { fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync, readFileSync, statSync } from 'node:fs';
import { copyFile, mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { type Item, tarOf } from '@releap/testing/oci';
import { DEFAULT_IMAGE_LIMITS } from '../../packages/runner/src/image/image-limits.ts';
import { planStack } from '../../packages/runner/src/image/image-stack.ts';
import { readIndex, writeIndex } from '../../packages/runner/src/image/layer-entries.ts';
import { mergeUnpacked } from '../../packages/runner/src/image/oci-flatten.ts';
import { writeRootImage } from '../../packages/runner/src/image/root-image.ts';
import { makeLayer } from './made-image.ts';

/** What one process has taken. */
interface Cost {
  ms: number;
  cpuMs: number;
  peakMib: number;
}

interface OwnJob {
  layers: { file: string; index: string; indexed: boolean }[];
  target: string;
  stacked: boolean;
}

const MIB = 2 ** 20;
const POLL_MS = 5;
const TICK_MS = 10;
const SHARED_MIB = [120, 90, 60, 30];
const NAMES = [10_000, 20_000, 40_000];

const file = (name: string, content = name): Item => ({ name, content });
const MERGED: Item[] = [file('usr/lib/libc'), { name: 'lib', type: 'symlink', linkname: 'usr/lib' }];
/** Rules of docs/images.md, with layers that they are about, and a file that must be there. */
const RULES: [rule: string, layers: Item[][], file: string, content: string][] = [
  [
    'whiteouts and opaque folders',
    [
      [file('a/x'), file('b')],
      [file('a/.wh.x', ''), file('a/y')],
    ],
    'a/y',
    'a/y',
  ],
  [
    'a name leads through a symbolic link of a lower layer',
    [MERGED, [file('lib/new')]],
    'usr/lib/new',
    'lib/new',
  ],
  ['such a name does not replace the link', [MERGED, [file('lib/new')]], 'lib/libc', 'usr/lib/libc'],
  [
    'a hard link to a file of a lower layer',
    [[file('z')], [{ name: 'a', type: 'link', linkname: 'z' }]],
    'a',
    'z',
  ],
  [
    'a file that is renamed: a whiteout, and a hard link to what it hides',
    [[file('z')], [{ name: 'a', type: 'link', linkname: 'z' }, file('.wh.z', '')]],
    'a',
    'z',
  ],
  [
    'a whiteout does not hide its own layer',
    [[file('a', 'old')], [file('a', 'new'), file('.wh.a', '')]],
    'a',
    'new',
  ],
];

if (process.send) process.once('message', (job) => void makeOwn(job as OwnJob));
else await main();

/** The work of `make-process.ts`, in a process that has done nothing else. */
async function makeOwn({ layers, target, stacked }: OwnJob): Promise<void> {
  const before = process.cpuUsage();
  const start = performance.now();
  const opened = layers.map(({ file, index, indexed }) => {
    const fd = openSync(file, 'r');
    const known = indexed ? readIndex(index) : undefined;
    const { size } = statSync(file);
    return {
      fd,
      size,
      path: file,
      ...(known && { entries: known }),
      [Symbol.dispose]: () => closeSync(fd),
    };
  });
  {
    using merged = await mergeUnpacked(opened, DEFAULT_IMAGE_LIMITS, (index, entries) => {
      const layer = layers[index];
      if (layer && !layer.indexed) writeIndex(layer.index, entries);
    });
    const sizes = opened.map(({ size }) => size);
    const stack = stacked ? planStack(sizes, DEFAULT_IMAGE_LIMITS) : undefined;
    await writeRootImage(merged, target, undefined, stack);
  }
  const { user, system } = process.cpuUsage(before);
  const cost: Cost = {
    ms: performance.now() - start,
    cpuMs: (user + system) / 1000,
    peakMib: peakMib('self'),
  };
  process.send?.(cost);
  process.disconnect();
}

async function own(job: OwnJob): Promise<Cost> {
  const child = fork(import.meta.filename, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
  await once(child, 'spawn');
  // The service starts these processes before there is work.
  await new Promise((done) => setTimeout(done, 1000));
  const answer = once(child, 'message');
  child.send(job);
  const [cost] = (await answer) as [Cost];
  return cost;
}

async function run(program: string, args: readonly string[]): Promise<Cost> {
  const start = performance.now();
  const child = spawn(program, args, { stdio: ['ignore', 'ignore', 'pipe'] });
  let said = '';
  child.stderr.on('data', (chunk: Buffer) => (said += String(chunk)));
  const cost: Cost = { ms: 0, cpuMs: 0, peakMib: 0 };
  const poll = setInterval(() => {
    try {
      const fields = readFileSync(`/proc/${child.pid}/stat`, 'utf8').split(') ')[1]?.split(' ') ?? [];
      cost.cpuMs = (Number(fields[11]) + Number(fields[12])) * TICK_MS || cost.cpuMs;
      cost.peakMib = peakMib(child.pid) || cost.peakMib;
    } catch {
      // It has ended.
    }
  }, POLL_MS);
  const [code] = (await once(child, 'close')) as [number | null];
  clearInterval(poll);
  if (code !== 0) throw new Error(`${program} ${args.join(' ')}: ${said.trim()}`);
  return { ...cost, ms: performance.now() - start };
}

/** `getrusage` has that of the process before its exec, too. */
function peakMib(pid: number | string | undefined): number {
  const [, kib] = /VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8')) ?? [];
  return Number(kib ?? 0) / 1024;
}

function total(costs: readonly Cost[]): Cost {
  return {
    ms: costs.reduce((sum, { ms }) => sum + ms, 0),
    cpuMs: costs.reduce((sum, { cpuMs }) => sum + cpuMs, 0),
    peakMib: Math.max(...costs.map(({ peakMib }) => peakMib)),
  };
}

/** Makes an image of all layers, and one that has another last layer. */
interface Maker {
  name: string;
  first: (work: string) => Promise<Cost>;
  second: (work: string) => Promise<Cost>;
  /** All files that the two images need, and those that the second one adds. */
  files: (work: string) => { both: string[]; added: string[] };
}

function makers(mkfs: string, layers: readonly string[], other: string): Maker[] {
  const shared = layers.slice(0, -1);
  const second = [...shared, other];
  const ours = (name: string, stacked: boolean): Maker => {
    const job = (work: string, files: readonly string[], target: string, isSecond: boolean): OwnJob => ({
      layers: files.map((file, index) => ({
        file,
        index: join(work, `${index}${isSecond && index === shared.length ? '-other' : ''}.index`),
        indexed: isSecond && index < shared.length,
      })),
      target: join(work, target),
      stacked,
    });
    return {
      name,
      first: async (work) => await own(job(work, layers, 'one', false)),
      second: async (work) => await own(job(work, second, 'two', true)),
      files: (work) => ({
        both: [...(stacked ? [...layers, other] : []), join(work, 'one'), join(work, 'two')],
        added: [...(stacked ? [other] : []), join(work, 'two')],
      }),
    };
  };
  const erofs = (name: string, options: readonly string[], isIndex: boolean): Maker => {
    const common = ['--quiet', '-d1', '-T0', '-Uclear', '--aufs'];
    const layerOf = (work: string, file: string): string => join(work, `${file.replaceAll('/', '_')}.erofs`);
    const make = async (work: string, file: string): Promise<Cost> =>
      await run(mkfs, [...common, ...options, layerOf(work, file), file]);
    const merge = async (work: string, files: readonly string[], target: string): Promise<Cost> =>
      await run(mkfs, [
        ...common,
        ...options.filter((option) => option.startsWith('-b')),
        '--ovlfs-strip=1',
        join(work, target),
        ...files.map((file) => layerOf(work, file)),
      ]);
    return {
      name,
      first: async (work) => {
        const costs = [];
        for (const file of layers) costs.push(await make(work, file));
        return total([...costs, await merge(work, layers, 'one')]);
      },
      second: async (work) => total([await make(work, other), await merge(work, second, 'two')]),
      files: (work) => {
        const images = (files: readonly string[]): string[] => [
          ...files.map((file) => layerOf(work, file)),
          ...(isIndex ? files : []),
        ];
        return {
          both: [...images([...layers, other]), join(work, 'one'), join(work, 'two')],
          added: [...images([other]), join(work, 'two')],
        };
      },
    };
  };
  return [
    ours('ours, stacked', true),
    ours('ours, one file', false),
    erofs('`mkfs.erofs --tar=i`, merged', ['--tar=i', '-b512'], true),
    erofs('`mkfs.erofs --tar=f`, merged', ['--tar=f', '-Enoinline_data'], false),
  ];
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      mkfs: { type: 'string' },
      layers: { type: 'string' },
      rounds: { type: 'string', default: '3' },
    },
  });
  if (values.mkfs === undefined) throw new Error('--mkfs PROGRAM is required: mkfs.erofs 1.8 or newer');
  const scratch = await mkdtemp(join(tmpdir(), 'releap-erofs-'));
  try {
    const files = values.layers?.split(',').map((file) => resolve(file)) ?? (await madeLayers(scratch));
    const [other] = await writeLayers(scratch, ['other'], [1]);
    const layers: string[] = [];
    for (const [index, file] of [...files, other ?? ''].entries()) {
      const copy = join(scratch, `${index}.tar`);
      await copyFile(file, copy);
      layers.push(copy);
    }
    const last = layers.pop() ?? '';
    await checkRules(values.mkfs, scratch);
    await manyNames(values.mkfs, scratch);
    process.stdout.write(
      '| maker | ms | CPU ms | peak MiB | ms, second | CPU ms, second | MiB, both | MiB, second |\n',
    );
    process.stdout.write('| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n');
    for (const maker of makers(values.mkfs, layers, last)) {
      const first: Cost[] = [];
      const second: Cost[] = [];
      let sizes = '';
      for (let round = 0; round < Number(values.rounds); round += 1) {
        const work = join(scratch, 'work');
        await mkdir(work);
        try {
          first.push(await maker.first(work));
          second.push(await maker.second(work));
          const { both, added } = maker.files(work);
          sizes = `${await mibOf(both)} | ${await mibOf(added)}`;
        } catch (error) {
          process.stdout.write(`| ${maker.name} | ${(error as Error).message.slice(-300)} |\n`);
          break;
        } finally {
          await rm(work, { recursive: true, force: true });
        }
      }
      if (sizes === '') continue;
      const of = (costs: readonly Cost[], key: keyof Cost): number =>
        Math.round(costs.map((cost) => cost[key]).toSorted((a, b) => a - b)[costs.length >> 1] ?? 0);
      const one = `${of(first, 'ms')} | ${of(first, 'cpuMs')} | ${of(first, 'peakMib')}`;
      const two = `${of(second, 'ms')} | ${of(second, 'cpuMs')}`;
      process.stdout.write(`| ${maker.name} | ${one} | ${two} | ${sizes} |\n`);
    }
  } finally {
    await rm(scratch, { recursive: true, force: true });
  }
}

/** Says of each rule whether images of `mkfs.erofs` follow it, and sparse files apart: GNU tar makes those. */
async function checkRules(mkfs: string, scratch: string): Promise<void> {
  const work = join(scratch, 'rules');
  process.stdout.write('| rule | mkfs.erofs |\n| --- | --- |\n');
  const check = async (
    rule: string,
    archives: readonly string[],
    name: string,
    content: Buffer,
  ): Promise<void> => {
    const answer = await read(mkfs, work, archives, name).then(
      (found) => (found.equals(content) ? 'followed' : 'another content'),
      (error: unknown) =>
        `not followed: ${(error as Error).message
          .trim()
          .split(/\n| @ /)[0]
          ?.slice(-80)}`,
    );
    process.stdout.write(`| ${rule} | ${answer} |\n`);
    await rm(work, { recursive: true });
  };
  for (const [rule, layers, name, content] of RULES) {
    await mkdir(work);
    const archives: string[] = [];
    for (const [index, items] of layers.entries()) {
      archives.push(join(work, `${index}.tar`));
      await writeFile(join(work, `${index}.tar`), await tarOf(items));
    }
    await check(rule, archives, name, Buffer.from(content));
  }
  for (const format of ['gnu', 'pax']) {
    await mkdir(work);
    const content = Buffer.alloc(5 * MIB);
    content.write('middle', 2 * MIB);
    await writeFile(join(work, 'sparse'), '');
    await run('truncate', ['-s', '2M', join(work, 'sparse')]);
    await writeFile(join(work, 'sparse'), 'middle', { flag: 'a' });
    await run('truncate', ['-s', '5M', join(work, 'sparse')]);
    await run('tar', ['-S', `--format=${format}`, '-C', work, '-cf', join(work, 'sparse.tar'), 'sparse']);
    await check(`a sparse file (${format})`, [join(work, 'sparse.tar')], 'sparse', content);
  }
}

/** What an archive costs that has all its names in one folder. */
async function manyNames(mkfs: string, scratch: string): Promise<void> {
  const work = join(scratch, 'names');
  process.stdout.write(
    '| names in one folder | CPU ms, ours | CPU ms, mkfs.erofs |\n| --- | ---: | ---: |\n',
  );
  for (const count of NAMES) {
    await mkdir(work);
    const layer = join(work, 'layer.tar');
    const items = Array.from({ length: count }, (_, index) => file(`folder/name-${index}`, ''));
    await writeFile(layer, await tarOf(items));
    const layers = [{ file: layer, index: join(work, 'index'), indexed: false }];
    const ours = await own({ layers, target: join(work, 'ours'), stacked: false });
    const theirs = await run(mkfs, ['--quiet', '-d1', '--aufs', '--tar=f', join(work, 'theirs'), layer]);
    process.stdout.write(`| ${count} | ${Math.round(ours.cpuMs)} | ${theirs.cpuMs} |\n`);
    await rm(work, { recursive: true });
  }
}

/** A file of a merged image, read by `fsck.erofs` of the same folder. */
async function read(mkfs: string, work: string, archives: readonly string[], name: string): Promise<Buffer> {
  const common = ['--quiet', '-d1', '-T0', '-Uclear', '--aufs'];
  const layers = archives.map((archive) => `${archive}.erofs`);
  for (const archive of archives)
    await run(mkfs, [...common, '--tar=f', '-Enoinline_data', `${archive}.erofs`, archive]);
  const merged = join(work, 'merged');
  await run(mkfs, [...common, '--ovlfs-strip=1', merged, ...layers]);
  const devices = layers.map((layer) => `--device=${layer}`);
  await run(mkfs.replace(/mkfs\.erofs$/, 'fsck.erofs'), [
    `--extract=${join(work, 'out')}`,
    ...devices,
    merged,
  ]);
  return await readFile(join(work, 'out', name));
}

async function madeLayers(scratch: string): Promise<string[]> {
  return await writeLayers(
    scratch,
    [...SHARED_MIB.map((_, index) => `shared-${index}`), 'one'],
    [...SHARED_MIB, 1],
  );
}

async function writeLayers(
  scratch: string,
  names: readonly string[],
  sizes: readonly number[],
): Promise<string[]> {
  const files: string[] = [];
  for (const [index, name] of names.entries()) {
    const file = join(scratch, `${name}.made`);
    await writeFile(file, await makeLayer(name, sizes[index] ?? 1));
    files.push(file);
  }
  return files;
}

async function mibOf(files: readonly string[]): Promise<string> {
  const sizes = await Promise.all(files.map(async (file) => (await stat(file)).size));
  return (sizes.reduce((sum, size) => sum + size, 0) / MIB).toFixed(1);
}
