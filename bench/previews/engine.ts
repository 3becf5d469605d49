/** The engine of a service's previews: its admin socket and its memory. */
import { readdir, readFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { memoryOf, until } from '../processes.ts';

async function admin(home: string, command: string): Promise<string> {
  const socket = connect(join(home, 'run', 'previews', 'admin.sock'));
  socket.write(`${command}\n`);
  return await text(socket);
}

/** Requests until one is routed. @returns the name of its lane */
export async function routedLane(home: string, request: () => Promise<unknown>): Promise<string> {
  let lane: string | undefined;
  await until('the engine has a route', async () => {
    await request();
    lane = /(lane\d+)\s*$/.exec(
      await admin(home, `show map ${join(home, 'run', 'previews', 'routes.map')}`),
    )?.[1];
    return lane !== undefined;
  });
  return lane ?? '';
}

/** Leads a lane to a server of this machine: the same rules, another destination. */
export async function redirectLane(home: string, lane: string, port: number): Promise<void> {
  await admin(home, `set server guests/${lane} addr 127.0.0.1 port ${port}`);
}

/** MiB of its processes. */
export async function engineMemory(home: string): Promise<number> {
  let sum = 0;
  for (const pid of await readdir('/proc')) {
    const command = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
    if (!command.startsWith('haproxy\0') || !command.includes(`${home}/run/previews/`)) continue;
    sum += (await memoryOf(Number(pid))).pss;
  }
  return sum;
}
