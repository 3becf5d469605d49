/**
 * The program and its options. The commands are registered group by group in program/; what one does is loaded only
 * when it is called.
 */
import { Command } from 'commander';
import { EXIT } from './exit-codes.ts';
import {
  accountCommands,
  invitationCommands,
  organizationCommands,
  projectCommands,
} from './program/account.ts';
import { commandCommands } from './program/commands.ts';
import { endpointCommands } from './program/endpoints.ts';
import { functionCommands } from './program/functions.ts';
import { hostCommands } from './program/hosts.ts';
import { imageCommands } from './program/images.ts';
import { lifecycleCommands } from './program/lifecycle.ts';
import { regionCommands } from './program/regions.ts';
import type { Registration } from './program/registration.ts';
import { sandboxCommands } from './program/sandboxes.ts';
import { secretCommands } from './program/secrets.ts';
import { snapshotCommands } from './program/snapshots.ts';
import { sshCommands } from './program/ssh.ts';
import { storeCommands } from './program/stores.ts';
import { volumeCommands } from './program/volumes.ts';
import type { Context, GlobalOptions, Terminal } from './terminal.ts';

export interface ProgramHost {
  argv: readonly string[];
  terminal: Terminal;
  signal: AbortSignal;
  /** Told the exit code of the command that ran. */
  done: (exitCode: number) => void;
}

/** In the order of the help. */
const GROUPS: readonly [title: string, registrations: ((registration: Registration) => void)[]][] = [
  [
    'Sandboxes:',
    [commandCommands, sshCommands, sandboxCommands, lifecycleCommands, snapshotCommands, endpointCommands],
  ],
  ['Functions:', [functionCommands]],
  ['What a project has besides:', [imageCommands, secretCommands, storeCommands, volumeCommands]],
  ['Account:', [accountCommands, organizationCommands, projectCommands, invitationCommands]],
  ["This machine, for the service's operator:", [hostCommands, regionCommands]],
];

export function createProgram(host: ProgramHost): Command {
  const program = new Command('rlp')
    .description('Sandboxes on machines of your own: micro-VMs from container images.')
    .option('--url <url>', 'the service (default: RELEAP_URL, else the server of this machine)')
    .option(
      '--api-key <key>',
      'its API key (default: RELEAP_API_KEY, else that of the server of this machine)',
    )
    .option('--json', 'print JSON on stdout, and errors as JSON on stderr', false)
    .version('0.1.0', '-V, --version')
    .configureHelp({ showGlobalOptions: true })
    .configureOutput({
      writeOut: (text) => host.terminal.stdout.write(text),
      // run-cli.ts prints commander's errors like all others.
      writeErr: () => undefined,
    })
    .exitOverride()
    .addHelpText(
      'after',
      '\nVM is the name of a sandbox, its id, or enough of the beginning of its id.' +
        `\nExit codes: ${EXIT.ok} done, ${EXIT.failed} refused or failed, ${EXIT.usage} wrong usage, ${EXIT.unavailable} service or key not usable, ${EXIT.notFound} not found.` +
        `\nrun and exec end with the code of the command; ${EXIT.timeout} its time was over, ${EXIT.noCommand} rlp itself failed, ${EXIT.interrupted} interrupted.`,
    );

  const context = (): Context => ({
    terminal: host.terminal,
    signal: host.signal,
    options: program.opts<GlobalOptions>(),
  });
  const finish = async (running: Promise<number>): Promise<void> => host.done(await running);
  const registration: Registration = {
    program,
    context,
    finish,
    lazy:
      (load) =>
      async (...args) =>
        finish((await load())(context(), ...args)),
    afterDashes: host.argv.includes('--') ? host.argv.slice(host.argv.indexOf('--') + 1) : [],
  };
  for (const [title, registrations] of GROUPS) {
    program.commandsGroup(title);
    for (const register of registrations) register(registration);
  }
  return program;
}
