/** Where the TXT record of a DNS-01 challenge is published. */
import { access, constants } from 'node:fs/promises';
import { runProgram } from './run-program.ts';

export interface ChallengeDns {
  /** Adds a TXT record. Others of that name stay. */
  add(name: string, value: string, signal: AbortSignal): Promise<void>;
  /** Removes it. One that does not exist is no error. */
  remove(name: string, value: string, signal: AbortSignal): Promise<void>;
}

/** A program of the operator's: `HOOK present NAME VALUE`, and `HOOK cleanup NAME VALUE`. */
export function dnsHook(program: string, deadlineMs: number): ChallengeDns {
  const run = async (words: readonly string[], signal: AbortSignal): Promise<void> => {
    await access(program, constants.X_OK).catch((error: NodeJS.ErrnoException) => {
      throw new Error(
        error.code === 'ENOENT'
          ? `${program} does not exist`
          : `${program} may not be executed (${error.code})`,
        { cause: error },
      );
    });
    await runProgram(program, words, { deadlineMs, signal });
  };
  return {
    add: (name, value, signal) => run(['present', name, value], signal),
    remove: (name, value, signal) => run(['cleanup', name, value], signal),
  };
}

export interface DynamicUpdateOptions {
  /** The zone's primary server. */
  server: { host: string; port: number };
  /** A TSIG key, as `tsig-keygen` and `keymgr -t` print it. Without one, updates are not signed. */
  keyFile?: string;
}

const NSUPDATE = 'nsupdate';
const UPDATE_MS = 60_000;
/** Of one attempt to reach the server, in seconds. */
const TRY_S = 20;
const TTL_S = 60;

/** Dynamic updates (RFC 2136) over TCP, by BIND's `nsupdate`: it asks the server which zone a name is in. */
export function dynamicUpdates({ server, keyFile }: DynamicUpdateOptions): ChallengeDns {
  const update = async (command: string, signal: AbortSignal): Promise<void> => {
    if (keyFile !== undefined) await access(keyFile, constants.R_OK);
    const args = ['-v', '-t', String(TRY_S), ...(keyFile === undefined ? [] : ['-k', keyFile])];
    const input = `server ${server.host} ${server.port}\n${command}\nsend\n`;
    await runProgram(NSUPDATE, args, { deadlineMs: UPDATE_MS, signal, input }).catch((error: Error) => {
      throw error.message.includes('does not exist')
        ? new Error('there is no nsupdate on this machine: install the package bind9-dnsutils', {
            cause: error,
          })
        : error;
    });
  };
  return {
    add: (name, value, signal) => update(`update add ${name}. ${TTL_S} IN TXT "${value}"`, signal),
    remove: (name, value, signal) => update(`update delete ${name}. IN TXT "${value}"`, signal),
  };
}
