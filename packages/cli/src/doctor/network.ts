/** Whether this user can make the networks of sandboxes: namespaces, taps, address translation. */
import { accessSync, constants, existsSync, readFileSync } from 'node:fs';
import type { Check } from './check.ts';
import { findTool, runTool } from './tool.ts';

const TOOL_MS = 10_000;

export async function checkNetwork(
  env: Readonly<Record<string, string | undefined>>,
  signal: AbortSignal,
): Promise<Check[]> {
  return [await checkNamespaces(env, signal), checkTun(), await checkNftables(env, signal), checkResolver()];
}

async function checkNamespaces(
  env: Readonly<Record<string, string | undefined>>,
  signal: AbortSignal,
): Promise<Check> {
  const check = (status: Check['status'], detail: string): Check => ({
    id: 'netns',
    title: 'Network namespaces',
    status,
    detail,
  });
  const unshare = findTool('unshare', env);
  const ip = findTool('ip', env);
  if (!ip) return { ...check('missing', 'not tried: there is no ip command'), packages: ['iproute2'] };
  if (!unshare)
    return { ...check('missing', 'not tried: there is no unshare command'), packages: ['util-linux'] };
  // In its own namespace, which ends with the process.
  const args = ['--net', '--', ip, 'link', 'add', 'rlp-doctor', 'type', 'veth', 'peer', 'name', 'rlp-peer'];
  const { exitCode, output } = await runTool(unshare, args, { timeoutMs: TOOL_MS, signal });
  if (exitCode === 0) return check('ok', 'namespaces and virtual links can be made');
  return check(
    'missing',
    `cannot be made: ${firstLine(output)}${process.getuid?.() === 0 ? '' : ' (the server runs as root)'}`,
  );
}

function checkTun(): Check {
  const check = (status: Check['status'], detail: string): Check => ({
    id: 'tun',
    title: 'Tap devices',
    status,
    detail,
  });
  if (!existsSync('/dev/net/tun')) return check('missing', 'no /dev/net/tun: load the tun module');
  try {
    accessSync('/dev/net/tun', constants.R_OK | constants.W_OK);
    return check('ok', '/dev/net/tun opens');
  } catch {
    return check('missing', 'this user may not open /dev/net/tun (the server runs as root)');
  }
}

async function checkNftables(
  env: Readonly<Record<string, string | undefined>>,
  signal: AbortSignal,
): Promise<Check> {
  const check = (status: Check['status'], detail: string): Check => ({
    id: 'nftables',
    title: 'Packet filter',
    status,
    detail,
  });
  const nft = findTool('nft', env);
  if (!nft) return { ...check('missing', 'there is no nft command'), packages: ['nftables'] };
  const { exitCode, output } = await runTool(nft, ['list', 'tables'], { timeoutMs: TOOL_MS, signal });
  return exitCode === 0
    ? check('ok', 'nftables answers')
    : check(
        'missing',
        `nftables does not answer: ${firstLine(output)}${process.getuid?.() === 0 ? '' : ' (the server runs as root)'}`,
      );
}

function checkResolver(): Check {
  const check = (status: Check['status'], detail: string): Check => ({
    id: 'dns',
    title: 'Name resolution',
    status,
    detail,
  });
  let text = '';
  try {
    text = readFileSync('/etc/resolv.conf', 'utf8');
  } catch {
    // Said below.
  }
  const servers = [...text.matchAll(/^\s*nameserver\s+(\S+)/gm)].map((match) => match[1] ?? '');
  return servers.length > 0
    ? check('ok', `sandboxes' questions go to ${servers.join(', ')}`)
    : check('warn', '/etc/resolv.conf names no server: sandboxes will not resolve names');
}

function firstLine(text: string): string {
  return text.trim().split('\n')[0]?.slice(0, 200) || 'no reason was given';
}
