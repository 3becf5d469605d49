/** Namespaces with an agent in each: 'the internet', and guests behind the taps of slots. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { run } from '../../src/process/index.ts';
import type { Slot } from '../../src/network/slot.ts';

export interface AgentAnswer {
  error?: string;
  text?: string;
  answers?: string[];
  seen?: { text: string; from: string; port: number }[];
}

const support = (name: string) => fileURLToPath(new URL(name, import.meta.url));

export class Namespace implements AsyncDisposable {
  readonly name: string;
  readonly #children: ChildProcess[] = [];
  readonly #waiting = new Map<number, (answer: AgentAnswer & { failure?: string }) => void>();
  #agent: ChildProcess | undefined;
  #next = 1;

  private constructor(name: string) {
    this.name = name;
  }

  get path(): string {
    return `/run/netns/${this.name}`;
  }

  static async create(name: string): Promise<Namespace> {
    await run('ip', ['netns', 'add', name]);
    const space = new Namespace(name);
    await run('ip', ['-n', name, 'link', 'set', 'lo', 'up']);
    return space;
  }

  async ip(...lines: string[]): Promise<void> {
    await run('ip', ['-n', this.name, '-batch', '-'], { input: `${lines.join('\n')}\n` });
  }

  /** Starts the agent; call it when the addresses are there. */
  startAgent(): void {
    const agent = spawn('nsenter', [`--net=${this.path}`, '--', process.execPath, support('net-agent.mjs')], {
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    this.#children.push(agent);
    this.#agent = agent;
    createInterface({ input: agent.stdout }).on('line', (line) => {
      const { id, ...answer } = JSON.parse(line) as AgentAnswer & { id: number };
      this.#waiting.get(id)?.(answer);
      this.#waiting.delete(id);
    });
  }

  async ask(op: string, parameters: object): Promise<AgentAnswer> {
    const id = this.#next++;
    const answered = new Promise<AgentAnswer & { failure?: string }>((resolve) =>
      this.#waiting.set(id, resolve),
    );
    this.#agent?.stdin?.write(`${JSON.stringify({ id, op, ...parameters })}\n`);
    const answer = await answered;
    if (answer.failure !== undefined) throw new Error(answer.failure);
    return answer;
  }

  keep(child: ChildProcess): void {
    this.#children.push(child);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const child of this.#children) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      const ended = once(child, 'exit');
      child.kill('SIGKILL');
      await ended;
    }
    await run('ip', ['netns', 'delete', this.name]);
  }
}

/** 203.0.113.2 and .3 as public hosts, 10.9.0.2 as a private one, and a metadata service, behind the 'host'. */
export async function createInternet(name: string): Promise<Namespace> {
  const space = await Namespace.create(name);
  await run('ip', ['-batch', '-'], {
    input: `link add inet0 type veth peer name wan0 netns ${name}
address add 203.0.113.1/24 dev inet0
address add 10.9.0.1/24 dev inet0
link set inet0 up
route add default via 203.0.113.2
`,
  });
  await space.ip(
    'address add 203.0.113.2/24 dev wan0',
    'address add 203.0.113.3/24 dev wan0',
    'address add 10.9.0.2/24 dev wan0',
    'address add 169.254.169.254/32 dev wan0',
    'link set wan0 up',
  );
  space.startAgent();
  await space.ask('tcp-server', { host: '0.0.0.0', port: 80, name: 'internet' });
  await space.ask('udp-server', { host: '0.0.0.0', port: 99 });
  return space;
}

/** A guest with the address that every guest has, on the slot's own tap. */
export async function attachGuest(name: string, slot: Slot): Promise<Namespace> {
  const space = await Namespace.create(name);
  await space.ip(
    `tuntap add dev eth0 mode tap`,
    `link set dev eth0 address ${slot.mac} up`,
    `address add ${slot.guestIp}/${slot.guestPrefix} dev eth0`,
    `route add default via ${slot.gatewayIp}`,
  );
  const bridge = spawn('perl', [support('tap-bridge.pl'), slot.netnsPath, space.path, 'eth0'], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  space.keep(bridge);
  await once(bridge.stdout, 'data');
  space.startAgent();
  return space;
}
