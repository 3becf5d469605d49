/** Volumes in a sandbox, next to the sandbox's own disk; and commits and attachments of a volume with many files. */
import { randomBytes } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type SuiteResult, summaryRows, type Verdict } from '../report.ts';
import { MeasuredService } from '../service.ts';
import { interleave, type Samples, summarize, timed } from '../statistics.ts';
import { type Suite } from '../suite.ts';

/**
 * Of a usual run, and of a quick one, which only shows that all works. Unpacking 10,000 files into a volume takes minutes where guests are
 * emulated; the ratio is that of 2,000.
 */
const SIZES = {
  usual: { mib: 256, archived: 2_000, many: 100_000, few: 1_000 },
  quick: { mib: 16, archived: 200, many: 2_000, few: 100 },
};
const CHANGED = 10;
const THROUGHPUT_GOAL = 0.6;
const UNTAR_GOAL = 3;
const COMMIT_GOAL_MS = 1_000;
/** An attachment that grew with the number of files would take a hundred times as long. */
const ATTACH_GOAL = 1.3;

const VOLUME = '/volume';
const DISK = '/root';

export const volumes: Suite = async function* ({ samples, progress, signal }) {
  const size = samples === 1 ? SIZES.quick : SIZES.usual;
  progress('starting a service and a sandbox');
  await using service = await MeasuredService.start({ warmPool: 0 });
  const rounds = (what: string) => ({
    rounds: samples,
    warmUp: Math.min(1, samples - 1),
    signal,
    onRound: (round: number) =>
      progress(`${what}: ${round < 0 ? 'warming up' : `round ${round + 1} of ${samples}`}`),
  });
  const create = async (name: string): Promise<string> =>
    (await service.call<{ id: string }>('POST', '/volumes', { name, size_gb: 8 })).id;
  const mounting = (volume: string): Record<string, unknown> => ({
    mem_mib: 1024,
    scratch_mib: 4096,
    volumes: [{ volume, mount_path: VOLUME }],
  });
  await create('content');
  const id = await service.createAndRun(mounting('content'));
  const inside = async (command: string): Promise<void> => {
    const { exitCode, result } = await service.service.exec(id, command);
    if (exitCode !== 0) throw new Error(`${command}: ${result}`);
  };
  const both = async (what: string, before: string, command: (folder: string) => string): Promise<Samples> =>
    await interleave(
      Object.fromEntries(
        [VOLUME, DISK].map((folder) => [
          `${what}, ${folder === VOLUME ? 'volume' : "the sandbox's disk"}`,
          async () => {
            await inside(`${before}; echo 3 > /proc/sys/vm/drop_caches`);
            return await timed(() => inside(command(folder)));
          },
        ]),
      ),
      rounds(what),
    );
  const write = await both(
    'write',
    'true',
    (folder) => `dd if=/dev/zero of=${folder}/large bs=1M count=${size.mib} conv=fsync`,
  );
  const read = await both('read', 'sync', (folder) => `dd if=${folder}/large of=/dev/null bs=1M`);
  await inside(
    `mkdir /tmp/many && cd /tmp/many && for i in $(seq ${size.archived}); do echo $i > $i; done && tar cf /tmp/many.tar -C /tmp many`,
  );
  const untar = await both(
    'untar',
    `rm -rf ${VOLUME}/many ${DISK}/many; sync; cat /tmp/many.tar > /dev/null`,
    (folder) => `tar xf /tmp/many.tar -C ${folder}`,
  );
  await service.remove(id);
  const ofDisk = (taken: Samples): number => {
    const [volume = [], disk = []] = Object.values(taken);
    return summarize(volume).p50 / summarize(disk).p50;
  };
  const throughput = (what: string, taken: Samples): Verdict => {
    const value = 1 / ofDisk(taken);
    return { what, value, goal: `at least ${THROUGHPUT_GOAL}`, met: value >= THROUGHPUT_GOAL };
  };
  const untarred = ofDisk(untar);
  yield {
    title: 'Files of a volume',
    goal: `${size.mib} MiB are written and read with at least ${THROUGHPUT_GOAL} of the throughput of the sandbox's own disk; ${size.archived} files are unpacked in at most ${UNTAR_GOAL} times its time.`,
    unit: 'ms',
    rows: summaryRows({ ...write, ...read, ...untar }),
    verdicts: [
      throughput("throughput of writing, relative to the sandbox's disk,", write),
      throughput("throughput of reading, relative to the sandbox's disk,", read),
      {
        what: "time of unpacking, relative to the sandbox's disk,",
        value: untarred,
        goal: `at most ${UNTAR_GOAL}`,
        met: untarred <= UNTAR_GOAL,
      },
    ],
    notes: ["dd and tar in the sandbox, with fsync when writing. The guest's page cache is emptied before."],
    samples: { ...write, ...read, ...untar },
  };
  yield await manyFiles();

  async function manyFiles(): Promise<SuiteResult> {
    const counts = { few: size.few, many: size.many };
    for (const [name, count] of Object.entries(counts)) {
      progress(`writing ${count} files`);
      const volume = await create(name);
      const sandbox = await service.createAndRun(mounting(name));
      await fill(join(service.service.home, 'runner/volumes', volume, 'mnt/data'), count);
      await service.call('POST', `/volumes/${name}/commit`, {});
      await service.remove(sandbox);
    }
    const attach = await interleave(
      Object.fromEntries(
        Object.entries(counts).map(([name, count]) => [
          `create with a volume of ${count} files`,
          async () => {
            let sandbox = '';
            const ms = await timed(async () => {
              sandbox = await service.create(mounting(name));
            });
            await service.remove(sandbox);
            return ms;
          },
        ]),
      ),
      rounds('attach'),
    );
    const sandbox = await service.createAndRun(mounting('many'));
    const what = `commit of ${CHANGED} changed files of ${size.many}`;
    const commit = await interleave(
      {
        [what]: async () => {
          const names = Array.from({ length: CHANGED }, (_, index) => `${VOLUME}/${index}/${index}`);
          const { exitCode, result } = await service.service.exec(
            sandbox,
            `for name in ${names.join(' ')}; do head -c 100 /dev/urandom > $name; done; sync`,
          );
          if (exitCode !== 0) throw new Error(result);
          return await timed(() => service.call('POST', '/volumes/many/commit', {}));
        },
      },
      rounds('commit'),
    );
    await service.remove(sandbox);
    const [few = [], many = []] = Object.values(attach);
    const grown = summarize(many).p50 / summarize(few).p50;
    const { p50 } = summarize(commit[what] ?? []);
    return {
      title: 'Volumes with many files',
      goal: `A volume of ${size.many} files is attached in the time of one of ${size.few}, and ${CHANGED} changed files are committed within a second.`,
      unit: 'ms',
      rows: summaryRows({ ...attach, ...commit }),
      verdicts: [
        {
          what: `time of a create with ${size.many} files, relative to ${size.few},`,
          value: grown,
          goal: `at most ${ATTACH_GOAL}`,
          met: grown <= ATTACH_GOAL,
        },
        { what: `${what}, ms,`, value: p50, goal: `under ${COMMIT_GOAL_MS}`, met: p50 < COMMIT_GOAL_MS },
      ],
      notes: [
        'The host has a copy of the volume. A create includes the start of the sandbox, a cold boot.',
        'A commit is requested through the API, which answers when the store has it.',
      ],
      samples: { ...attach, ...commit },
    };
  }
};

/** Small files in folders of up to 1,000, and never fewer folders than files that change. */
async function fill(data: string, count: number): Promise<void> {
  const folders = Math.max(CHANGED, Math.ceil(count / 1_000));
  for (let folder = 0; folder < folders; folder += 1) {
    await mkdir(join(data, String(folder)));
    const files = Array.from({ length: count / folders }, (_, index) =>
      join(data, String(folder), String(index)),
    );
    for (const file of files) await writeFile(file, randomBytes(64));
  }
}
