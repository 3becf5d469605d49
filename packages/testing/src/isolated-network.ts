/**
 * Puts a test file into a network namespace of its own, so that the rules, routes and switches it changes are not
 * the machine's, and all of it is gone with the process, however that ends.
 */
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';

const MARK = 'RELEAP_TEST_NETWORK';

/** Call it first, from a file run as root. Replaces the process; standard output stays the test runner's. */
export function isolateNetwork(file: string): void {
  if (process.env[MARK] === '1') {
    spawnSync('ip', ['link', 'set', 'lo', 'up']);
    // A new namespace inherits the sysctls of the machine, on which a service may be running.
    writeFileSync('/proc/sys/net/ipv4/ip_forward', '0');
    return;
  }
  const command = ['unshare', '--net', '--', process.execPath, ...process.execArgv, file];
  process.execve?.('/usr/bin/unshare', command, { ...process.env, [MARK]: '1' });
}
