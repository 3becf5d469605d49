/** Cold calls of functions, next to the restore of a guest by hand. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Floor } from '../floor/floor.ts';
import { until } from '../processes.ts';
import { type SuiteResult, summaryRows } from '../report.ts';
import { busyboxRoot, CACHE, MeasuredService } from '../service.ts';
import { interleave, summarize, timed } from '../statistics.ts';
import { type Suite, suiteFolder } from '../suite.ts';

/** Of a cold call, as a multiple of what it cannot be faster than. */
const GOAL = 1.3;
/** How long the handler waits before it listens. */
const HANDLER_START_MS = 500;
/** Its answers say how long it took to start, in seconds since the boot: at its begin, and before the server. */
const HANDLER = [
  '/bin/sh',
  '-c',
  `read begun rest < /proc/uptime; mkdir -p /www/cgi-bin
printf '#!/bin/sh\nread times < /www/times; printf "content-type: text/plain\\r\\n\\r\\n$times"' > /www/cgi-bin/index.cgi
chmod +x /www/cgi-bin/index.cgi; sleep ${HANDLER_START_MS / 1000}; read ready rest < /proc/uptime; echo $begun $ready > /www/times
exec httpd -f -p $RLP_FN_PORT -h /www`,
];
const READY_MS = 300_000;
/** Until an instance without calls is gone: the shortest scale-down window, the grace period, and its deletion. */
const GONE_MS = 120_000;

const FLOOR = 'a guest is restored by hand';
const OWN = 'the start of the handler, as it says';
const KINDS = { fn_ready: 'cold call, fn_ready', pre_entrypoint: 'cold call, pre_entrypoint' } as const;

/** On all hosts, instances of functions too. */
async function sandboxes({ service }: MeasuredService): Promise<number> {
  const token = (await readFile(join(service.home, 'operator.token'), 'utf8')).trim();
  const answer = await fetch(`${service.bootstrap.internal_url}/operator/hosts`, {
    headers: { authorization: `Bearer ${token}` },
  });
  const { hosts } = (await answer.json()) as { hosts: { sandboxes: Record<string, number> }[] };
  return hosts.flatMap((host) => Object.values(host.sandboxes)).reduce((sum, count) => sum + count, 0);
}

export const functionsCold: Suite = async ({ samples, progress, signal }): Promise<SuiteResult[]> => {
  progress('starting a service and its functions');
  await using folder = await suiteFolder();
  await using service = await MeasuredService.start({ warmPool: 0 });
  const { bootstrap } = service.service;
  const gateway = (await service.service.toolboxUrl()).replace(/\/toolbox$/, '');
  for (const kind of Object.keys(KINDS)) {
    const name = kind.replace('_', '-');
    await service.call('POST', '/fns', {
      name,
      image: 'busybox',
      handler: HANDLER,
      snapshot_kind: kind,
      mem_mib: 256,
      scratch_mib: 64,
      scaledown_window_s: 2,
    });
    await until(
      `${name} can serve`,
      async () => {
        const { versions } = await service.call<{
          versions: { template_state: string; template_error: string | null }[];
        }>('GET', `/fns/${name}/versions`);
        const [version] = versions;
        if (version?.template_error) throw new Error(version.template_error);
        return version?.template_state === 'published';
      },
      READY_MS,
    );
  }
  await using floor = await Floor.start({
    folder: folder.path,
    cacheDir: CACHE,
    rootImage: await busyboxRoot(),
    slots: 1,
  });
  const own: number[] = [];
  const call = async (kind: keyof typeof KINDS): Promise<number> => {
    signal.throwIfAborted();
    await until('no instance is left', async () => (await sandboxes(service)) === 0, GONE_MS);
    // What its deletion leaves to do is no part of the next call.
    await service.settled(0);
    return timed(async () => {
      const answer = await fetch(`${gateway}/fns/${kind.replace('_', '-')}/invoke`, {
        method: 'POST',
        headers: { authorization: `Bearer ${bootstrap.api_key}` },
      });
      const text = await answer.text();
      if (answer.status !== 200) throw new Error(`the function answered ${answer.status}: ${text}`);
      if (answer.headers.get('x-rlp-cold') !== '1') throw new Error('the call was not cold');
      const [begun = Number.NaN, ready = Number.NaN] = text.split(' ').map(Number);
      if (kind === 'pre_entrypoint') own.push((ready - begun) * 1000);
    });
  };
  const measured = await interleave(
    {
      [FLOOR]: async () => (await floor.restore())[0] ?? Number.NaN,
      [KINDS.fn_ready]: () => call('fn_ready'),
      [KINDS.pre_entrypoint]: () => call('pre_entrypoint'),
    },
    { rounds: samples, warmUp: 1, signal, onRound: (round) => progress(`round ${round + 1}`) },
  );
  // Without those of the round that warms up.
  const times: Record<string, number[]> = { ...measured, [OWN]: own.slice(-samples) };
  const median = (what: string): number => summarize(times[what] ?? []).p50;
  const verdict = (what: string, value: number) => ({
    what,
    value,
    goal: `at most ${GOAL}`,
    met: value <= GOAL,
  });
  return [
    {
      title: 'Cold calls of functions',
      goal: `A cold call takes at most ${GOAL} times as long as the restore of a guest, and, without fn_ready, the start of the handler.`,
      unit: 'ms',
      rows: summaryRows(times),
      verdicts: [
        verdict('fn_ready, as a multiple of a restore by hand', median(KINDS.fn_ready) / median(FLOOR)),
        verdict(
          'pre_entrypoint, as a multiple of a restore by hand and the start of the handler',
          median(KINDS.pre_entrypoint) / (median(FLOOR) + median(OWN)),
        ),
      ],
      notes: [
        `The handler waits for ${HANDLER_START_MS} ms before it listens. Each call comes when no instance is left; no machine waits in a pool.`,
      ],
      samples: times,
    },
  ];
};
