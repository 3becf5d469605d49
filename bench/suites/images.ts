/** Pulls of images, beside separate tools that do the same; builds of Dockerfiles; creates from small and large images. */
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { startRegistry, type TestRegistry } from '@releap/testing/registry';
import { pino } from 'pino';
import { ImageStore } from '../../packages/runner/src/image/image-store.ts';
import { busyboxLayer, makeLayer, pushImage } from '../images/made-image.ts';
import { type SuiteResult, summaryRows } from '../report.ts';
import { MeasuredService } from '../service.ts';
import { inRounds, interleave, percentile, type Samples, timed } from '../statistics.ts';
import { type Suite, suiteFolder, type SuiteOptions } from '../suite.ts';

const run = promisify(execFile);
/** Pulls take seconds each: not as many of them as of creates. */
const PULLS_MAX = 7;
const WARM_UP = 1;
const SIZES = { shared: [120, 90, 60, 30], own: 1, small: 5, large: 1024 };
/** With one sample it is only seen that everything works. */
const QUICK_SHARE = 1 / 20;
const GOALS = { tools: 1.1, second: 0.2, unchanged: 0.1, rebuild: 0.1, size: 1.1 };
/** Builds take longer still where guests are emulated. */
const BUILDS_MAX = 5;
const POLL_MS = 20;

const FIRST = 'pull and convert';
const SECOND = 'a second image with the same layers and one of its own';
const UNCHANGED = 'an unchanged image, asked for again';
const NEW_BUILD = 'a build of three new steps';
const SAME_BUILD = 'the same build once more';
const TOOLS = '`skopeo copy` + `umoci unpack` + `mksquashfs`';

export const images: Suite = async function* (options) {
  await using folder = await suiteFolder();
  const registryFolder = join(folder.path, 'registry');
  await mkdir(registryFolder);
  await using registry = await startRegistry(registryFolder);
  const scale = options.samples === 1 ? QUICK_SHARE : 1;
  yield await pulls(options, folder.path, registry, scale);
  const base = await busyboxLayer(folder.path);
  await using service = await MeasuredService.start({ warmPool: 0 });
  yield await builds(options, service, await pushImage(registry, folder.path, 'base', [base]));
  yield await creates(options, service, folder.path, registry, base, scale);
};

async function pulls(
  { samples, progress, signal }: SuiteOptions,
  folder: string,
  registry: TestRegistry,
  scale: number,
): Promise<SuiteResult> {
  progress('making two images that share their layers');
  const shared = await Promise.all(
    SIZES.shared.map((mib, index) => makeLayer(`shared-${index}`, mib * scale)),
  );
  const one = await pushImage(registry, folder, 'one', [...shared, await makeLayer('one', SIZES.own)]);
  const two = await pushImage(registry, folder, 'two', [...shared, await makeLayer('two', SIZES.own)]);
  const mib = SIZES.shared.reduce((sum, size) => sum + size, SIZES.own) * scale;
  const rounds = Math.min(samples, PULLS_MAX);
  const measured = await inRounds(
    {
      rounds,
      warmUp: Math.min(WARM_UP, samples - 1),
      signal,
      onRound: (round) => progress(`pulls, round ${round + 1} of ${rounds}`),
    },
    async (note) => {
      const work = await mkdtemp(join(folder, 'work-'));
      try {
        const cacheDir = join(work, 'cache');
        const log = pino({ level: 'silent' });
        const store = new ImageStore({
          cacheDir,
          log,
          privateHosts: ['loopback'],
          limits: { resolutionTtlMs: 0 },
        });
        await store.start();
        const ensure = (ref: string): Promise<number> =>
          timed(() => store.ensure({ type: 'registry', ref }, { signal }));
        note(FIRST, await ensure(one));
        note(SECOND, await ensure(two));
        note(UNCHANGED, await ensure(one));
        await store.close();
        note(TOOLS, await timed(() => separateTools(one, work)));
      } finally {
        await rm(work, { recursive: true, force: true });
      }
    },
  );
  const verdict = (what: string, a: string, b: string, goal: number): SuiteResult['verdicts'][number] => {
    const value = p50(measured, a) / p50(measured, b);
    return { what, value, goal: `at most ${goal}`, met: value <= goal };
  };
  return {
    title: 'Pulls of images',
    goal:
      `From a registry on this machine to a root image that sandboxes boot from: ${Math.round(mib)} MiB of files in ` +
      `${SIZES.shared.length + 1} layers (gzip), in an empty cache, beside separate tools that do the same.`,
    unit: 'ms',
    rows: summaryRows(measured),
    verdicts: [
      verdict('p50 of pull and convert, beside separate tools,', FIRST, TOOLS, GOALS.tools),
      verdict('p50 of a second image that shares its layers, beside the first,', SECOND, FIRST, GOALS.second),
      verdict('p50 of an unchanged image, beside the first,', UNCHANGED, FIRST, GOALS.unchanged),
    ],
    notes: [
      'ours fsyncs the root image after it is published; the separate tools do not fsync',
      'the unchanged image is asked for with an expired answer: the registry is asked what its tag means',
    ],
    samples: measured,
  };
}

/** The same result with one tool after the other: nothing compressed, no fragments. */
async function separateTools(ref: string, work: string): Promise<void> {
  const layout = join(work, 'layout');
  const bundle = join(work, 'bundle');
  await run('skopeo', ['copy', '-q', '--src-tls-verify=false', `docker://${ref}`, `oci:${layout}:image`]);
  await run('umoci', ['unpack', '--image', `${layout}:image`, bundle]);
  const plain = ['-noI', '-noId', '-noD', '-noF', '-noX', '-no-fragments', '-no-progress', '-quiet'];
  await run('mksquashfs', [join(bundle, 'rootfs'), join(work, 'root.squashfs'), ...plain]);
}

/** Builds of a Dockerfile that is new, and the same once more. */
async function builds(
  { samples, progress, signal }: SuiteOptions,
  service: MeasuredService,
  base: string,
): Promise<SuiteResult> {
  const build = async (name: string, dockerfile: string): Promise<number> =>
    await timed(async () => {
      const source = { type: 'dockerfile', dockerfile };
      const { job_id: job } = await service.call<{ job_id: string }>('POST', '/images', { name, source });
      for (;;) {
        const { status, error } = await service.call<{ status: string; error: string }>(
          'GET',
          `/jobs/${job}`,
        );
        if (status === 'failed') throw new Error(`the build has failed: ${error}`);
        if (status === 'done') return;
        await sleep(POLL_MS, undefined, { signal });
      }
    });
  const rounds = Math.min(samples, BUILDS_MAX);
  let serial = 0;
  const measured = await inRounds(
    {
      rounds,
      // The first build of a host makes the image of its micro-VM.
      warmUp: 1,
      signal,
      onRound: (round) => progress(`builds, round ${round + 1} of ${rounds}`),
    },
    async (note) => {
      serial += 1;
      const steps = [`echo ${serial} > /number`, 'mkdir /made', 'echo done > /made/file'];
      const dockerfile = [`FROM ${base}`, ...steps.map((step) => `RUN ${step}`), ''].join('\n');
      note(NEW_BUILD, await build(`build-${serial}`, dockerfile));
      note(SAME_BUILD, await build(`build-${serial}`, dockerfile));
    },
  );
  const value = p50(measured, SAME_BUILD) / p50(measured, NEW_BUILD);
  return {
    title: 'Builds of Dockerfiles',
    goal: 'From `POST /images` to the end of its job: three steps on a small base image, in a micro-VM.',
    unit: 'ms',
    rows: summaryRows(measured),
    verdicts: [
      {
        what: 'p50 of an unchanged build, beside the first,',
        value,
        goal: `at most ${GOALS.rebuild}`,
        met: value <= GOALS.rebuild,
      },
    ],
    notes: ['an unchanged build asks the registry what its base image is now, and starts no micro-VM'],
    samples: measured,
  };
}

function p50(samples: Samples, name: string): number {
  return percentile(
    (samples[name] ?? []).toSorted((a, b) => a - b),
    50,
  );
}

async function creates(
  { samples, progress, signal }: SuiteOptions,
  service: MeasuredService,
  folder: string,
  registry: TestRegistry,
  base: Buffer,
  scale: number,
): Promise<SuiteResult> {
  progress('making a small and a large image');
  const sizes = { small: SIZES.small, large: SIZES.large * scale };
  const refs = {
    small: await pushImage(registry, folder, 'small', [base, await makeLayer('small', sizes.small)]),
    large: await pushImage(registry, folder, 'large', [base, ...(await largeLayers(sizes.large))]),
  };
  const create = (ref: string) => async (): Promise<number> => {
    let id = '';
    const took = await timed(async () => {
      id = await service.createAndRun({ image: ref });
    });
    await service.remove(id);
    await service.settled(0);
    return took;
  };
  // The first create of each pulls it.
  for (const ref of Object.values(refs)) await create(ref)();
  const names = {
    small: `create from an image of ${Math.round(sizes.small)} MiB`,
    large: `create from an image of ${Math.round(sizes.large)} MiB`,
  };
  const measured: Samples = await interleave(
    { [names.small]: create(refs.small), [names.large]: create(refs.large) },
    {
      rounds: samples,
      warmUp: Math.min(WARM_UP, samples - 1),
      signal,
      onRound: (round) => progress(`creates, round ${round + 1}`),
    },
  );
  const value = p50(measured, names.large) / p50(measured, names.small);
  return {
    title: 'Creates from small and large images',
    goal: 'From `POST /vms` to the first answered command, with images that are in the cache: their size must not matter.',
    unit: 'ms',
    rows: summaryRows(measured),
    verdicts: [
      {
        what: 'p50 with the large image, beside the small one,',
        value,
        goal: `at most ${GOALS.size}`,
        met: value <= GOALS.size,
      },
    ],
    samples: measured,
  };
}

const LARGE_LAYER_MIB = 128;
async function largeLayers(mib: number): Promise<Buffer[]> {
  const count = Math.max(1, Math.ceil(mib / LARGE_LAYER_MIB));
  const layers: Buffer[] = [];
  for (let i = 0; i < count; i++) layers.push(await makeLayer(`large-${i}`, mib / count));
  return layers;
}
