/**
 * `node bench/functions/gateway-memory.ts [FUNCTIONS…]`: resident memory of a gateway that has called so many functions, once each,
 * and whose instances have ended. For each number a gateway of its own, in a process of its own.
 */
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { newToken } from '@releap/contract';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { startGatewayOf, startLoneControl } from './lone-gateway.ts';

const NUMBERS = [0, 100, 10_000];
const AT_ONCE = 16;
/** After the last call: the instances have ended, and collections have run. */
const SETTLE_MS = 8_000;
/** As the supervisor starts it. */
const OPTIONS = ['--max-semi-space-size=2', '--expose-gc'];

interface Sizes {
  rss: number;
  heapUsed: number;
}

if (process.env['GATEWAY_OF'] === undefined) await main(process.argv.slice(2).map(Number));
else await beGateway(process.env['GATEWAY_OF']);

async function main(numbers: number[]): Promise<void> {
  const handler = createServer((request, response) => {
    request.resume().on('end', () => response.end('ok'));
  }).listen(0, '127.0.0.1');
  await once(handler, 'listening');
  const folder = await temporaryFolder('releap-gateway-memory-');
  for (const functions of numbers.length > 0 ? numbers : NUMBERS) {
    await using control = await startLoneControl(folder, (handler.address() as AddressInfo).port, {
      scaledown_window_s: 2,
      max_concurrency: 1,
      max_instances: 1,
    });
    const { rss, heapUsed } = await measure(control.url, functions);
    const mib = (bytes: number): string => (bytes / 2 ** 20).toFixed(1);
    console.log(
      `${functions} functions: ${mib(rss)} MiB resident, ${mib(heapUsed)} MiB of JavaScript objects`,
    );
  }
  handler.close();
  handler.closeAllConnections();
  await rm(folder, { recursive: true, force: true });
}

async function measure(control: string, functions: number): Promise<Sizes> {
  const child = fork(import.meta.filename, {
    env: { ...process.env, GATEWAY_OF: control },
    execArgv: OPTIONS,
  });
  try {
    const [port] = (await once(child, 'message')) as [number];
    const authorization = `Bearer ${newToken('apiKey')}`;
    let next = 0;
    const call = async (): Promise<void> => {
      while (next < functions) {
        const name = `f${next++}`;
        const url = `http://127.0.0.1:${port}/fns/${name}/invoke`;
        const answer = await fetch(url, { method: 'POST', headers: { authorization }, body: 'x' });
        if (answer.status !== 200) throw new Error(`${name}: ${answer.status} ${await answer.text()}`);
        await answer.arrayBuffer();
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, call));
    await sleep(SETTLE_MS);
    child.send('measure');
    const [sizes] = (await once(child, 'message')) as [Sizes];
    return sizes;
  } finally {
    child.kill('SIGKILL');
  }
}

async function beGateway(control: string): Promise<void> {
  const gateway = await startGatewayOf(control);
  process.on('message', () => {
    const { gc } = globalThis;
    gc?.();
    const { rss, heapUsed } = process.memoryUsage();
    process.send?.({ rss, heapUsed } satisfies Sizes);
  });
  process.send?.(gateway.port);
}
