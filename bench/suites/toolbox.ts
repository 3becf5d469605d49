/** Commands and files through the toolbox, next to the plainest way over the same channel or network. */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { connect } from 'node:net';
import { Floor } from '../floor/floor.ts';
import { until } from '../processes.ts';
import { type SuiteResult, summaryRows } from '../report.ts';
import { busyboxRoot, CACHE, MeasuredService } from '../service.ts';
import { interleave, type RoundOptions, type Samples, summarize, timed } from '../statistics.ts';
import { type Suite, suiteFolder } from '../suite.ts';

/** Of a quick run, which only shows that all works. */
const QUICK_MIB = 8;
const MIB = 256;
const FILES = 1000;
const FILE_BYTES = 4096;
const EXEC_PORT = 5000;
/** Of the floor's time. */
const EXEC_GOAL = 1.3;
/** Share of the throughput of a plain copy. */
const COPY_GOAL = 0.6;
const FILES_GOAL_MS = 2000;

const EXECUTE = 'process/execute';
const AGENT_EXEC = "the agent's exec over the same channel, of a guest that is restored by hand";
const NETWORK_EXEC = "a server in the guest that starts it, over the guest's network";

export const toolbox: Suite = async ({ samples, progress, signal }) => {
  const mib = samples === 1 ? QUICK_MIB : MIB;
  progress('starting a service and a sandbox');
  await using service = await MeasuredService.start({ warmPool: 0 });
  const id = await service.createAndRun({ mem_mib: 1024, scratch_mib: 4 * mib + 256 });
  const { vm_ip: address } = await service.call<{ vm_ip: string }>('GET', `/vms/${id}`);
  const base = `${await service.service.toolboxUrl()}/${id}`;
  const headers = { authorization: `Bearer ${service.service.bootstrap.api_key}` };
  const post = async (
    path: string,
    body: NonNullable<RequestInit['body']>,
    type?: string,
  ): Promise<Response> => {
    const answer = await fetch(`${base}/${path}`, {
      method: 'POST',
      headers: { ...headers, ...(type === undefined ? {} : { 'content-type': type }) },
      body,
    });
    if (!answer.ok) throw new Error(`${path} answered ${answer.status}: ${await answer.text()}`);
    return answer;
  };
  const drain = async (answer: Response): Promise<void> => {
    for await (const _chunk of answer.body ?? []);
  };
  const rounds = (what: string): RoundOptions => ({
    rounds: samples,
    warmUp: Math.min(1, samples - 1),
    signal,
    onRound: (round) => progress(`${what}: ${round < 0 ? 'warming up' : `round ${round + 1} of ${samples}`}`),
  });

  await service.service.exec(id, `nc -ll -p ${EXEC_PORT} -e true > /dev/null 2>&1 &`);
  await until('the server in the guest listens', async () => {
    const answer = await fetch(`${base}/port/${EXEC_PORT}/in-use`, { headers });
    return ((await answer.json()) as { isInUse: boolean }).isInUse;
  });
  const commands = await withFloor(async (floor) =>
    interleave(
      {
        [EXECUTE]: () => timed(() => service.runTrue(id)),
        [AGENT_EXEC]: await floor.hold(),
        [NETWORK_EXEC]: () =>
          timed(async () => {
            const socket = connect({ host: address, port: EXEC_PORT });
            socket.resume();
            await once(socket, 'close');
          }),
      },
      // The emulator translates the code of a command in its first runs.
      { ...rounds('true'), rounds: samples * 5, warmUp: samples === 1 ? 0 : 10 },
    ),
  );

  const bytes = randomBytes(mib * 2 ** 20);
  const one = (): FormData => form([['/tmp/bulk', bytes]]);
  const copies = await interleave(
    {
      'files/upload (plain)': () =>
        timed(
          async () => void (await post('files/upload?path=/tmp/plain', bytes, 'application/octet-stream')),
        ),
      'files/bulk-upload': () => timed(async () => void (await post('files/bulk-upload', one()))),
      'files/download (plain)': () =>
        timed(async () => drain(await fetch(`${base}/files/download?path=/tmp/plain`, { headers }))),
      'files/bulk-download': () =>
        timed(async () =>
          drain(await post('files/bulk-download', '{"paths":["/tmp/bulk"]}', 'application/json')),
        ),
    },
    rounds(`${mib} MiB`),
  );

  const content = randomBytes(FILE_BYTES);
  let folders = 0;
  let many: string[] = [];
  const bulk = await interleave(
    {
      [`upload of ${FILES} files`]: () =>
        timed(async () => {
          folders++;
          many = Array.from({ length: FILES }, (_, index) => `/tmp/many-${folders}/${index}`);
          await post('files/bulk-upload', form(many.map((path) => [path, content])));
        }),
      [`download of ${FILES} files`]: () =>
        timed(async () =>
          drain(await post('files/bulk-download', JSON.stringify({ paths: many }), 'application/json')),
        ),
    },
    rounds(`${FILES} files`),
  );
  await service.remove(id);

  const taken: Samples = { ...commands, ...copies, ...bulk };
  const p50 = (name: string): number => summarize(taken[name] ?? []).p50;
  const ratio = (what: string, value: number, goal: number, least: boolean) => ({
    what,
    value,
    goal: `${least ? 'at least' : 'at most'} ${goal}`,
    met: least ? value >= goal : value <= goal,
  });
  const result: SuiteResult = {
    title: 'Toolbox',
    goal:
      `\`true\` through the gateway at most ${EXEC_GOAL} × the agent's own exec. ` +
      `${mib} MiB through the toolbox daemon at least ${COPY_GOAL} of the throughput of a single file over the agent's channel. ` +
      `${FILES} files of ${FILE_BYTES / 1024} KiB in one request within ${FILES_GOAL_MS} ms.`,
    unit: 'ms',
    rows: summaryRows(taken),
    verdicts: [
      ratio(
        "process/execute, relative to the agent's exec,",
        p50(EXECUTE) / p50(AGENT_EXEC),
        EXEC_GOAL,
        false,
      ),
      ratio(
        'throughput of bulk-upload, relative to a plain upload,',
        p50('files/upload (plain)') / p50('files/bulk-upload'),
        COPY_GOAL,
        true,
      ),
      ratio(
        'throughput of bulk-download, relative to a plain download,',
        p50('files/download (plain)') / p50('files/bulk-download'),
        COPY_GOAL,
        true,
      ),
      ...Object.keys(bulk).map((name) => ratio(`${name} in ms`, p50(name), FILES_GOAL_MS, false)),
    ],
    notes: [
      'Each upload of many files is one of new files: to replace one takes ext4 longer, which writes its blocks at the rename.',
      "The agent's exec is one request on its virtio-serial port, without a gateway, a runner and a control plane.",
      'The server in the guest has no agent either: BusyBox `nc` forks for each connection. It starts no shell.',
      'A single file is written by the agent, files of a bulk request by the toolbox daemon, which reaches the agent over a socket.',
    ],
    samples: taken,
  };
  return [result];
};

/** With the means to restore a guest by hand, which ends with `use`. */
async function withFloor<T>(use: (floor: Floor) => Promise<T>): Promise<T> {
  await using folder = await suiteFolder();
  const rootImage = await busyboxRoot();
  await using floor = await Floor.start({ folder: folder.path, cacheDir: CACHE, rootImage, slots: 1 });
  return await use(floor);
}

function form(files: readonly (readonly [path: string, content: Buffer<ArrayBuffer>])[]): FormData {
  const data = new FormData();
  for (const [index, [path, content]] of files.entries()) {
    data.append(`files[${index}].path`, path);
    data.append(`files[${index}].file`, new Blob([content]), 'file');
  }
  return data;
}
