import { setTimeout as sleep } from 'node:timers/promises';
import { ApiError, type GatewayTarget, parseSandboxId } from '@releap/contract';
import type { Logger } from 'pino';
import type { AuthContext, Connection } from 'ssh2';
import type { Grants } from '../control/grants.ts';
import type { Login } from './login.ts';
import type { LoginLimiter } from './login-limiter.ts';
import type { SshLimits } from './ssh-limits.ts';
import { mayBeCredential, parseSshUser } from './ssh-user.ts';

/** Offered to a user name without a credential. */
const METHODS: ('password' | 'keyboard-interactive')[] = ['password', 'keyboard-interactive'];

export interface AuthenticationOptions {
  address: string;
  grants: Pick<Grants, 'lease'>;
  limiter: LoginLimiter;
  limits: SshLimits;
  log: Logger;
}

export const sshTarget = (sandbox: string): GatewayTarget => ({ kind: 'ssh', sandbox });

/** Whether control refuses the credential or the sandbox for it. Other errors say that it cannot decide now. */
export const isRefusal = ({ status }: ApiError): boolean => [400, 401, 403, 404].includes(status);

/**
 * Authenticates a client: with the credential in its user name by any method, or else as password. Every refusal is the
 * same, and takes the same time at least.
 * @param onLogin called once, before the client gets its answer
 */
export function authenticate(
  client: Connection,
  options: AuthenticationOptions,
  onLogin: (login: Login) => void,
): void {
  const { address, grants, limiter, limits, log } = options;
  let attempts = 0;
  let closed = false;
  client.on('close', () => {
    closed = true;
  });

  async function check(sandbox: string, token: string): Promise<Login | null> {
    const subject = parseSandboxId(sandbox)?.uuid ?? sandbox;
    if (limiter.isBlocked(address, subject)) return null;
    const login: Login = { target: sshTarget(sandbox), token };
    try {
      if (mayBeCredential(token)) {
        using _granted = await grants.lease(login.target, token);
        limiter.succeeded(address, subject);
        return login;
      }
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      // The credential is valid, and the sandbox does not run: the client's channels say so.
      if (error.status === 409) {
        limiter.succeeded(address, subject);
        return login;
      }
      if (!isRefusal(error)) {
        log.warn({ err: error, sandbox }, 'an SSH login could not be decided');
        return null;
      }
    }
    limiter.failed(address, subject);
    return null;
  }

  async function decide(context: AuthContext, sandbox: string, token: string, again: boolean): Promise<void> {
    const answerAt = performance.now() + limits.refusalMs;
    const login = await check(sandbox, token).catch((error: unknown) => {
      log.error({ err: error }, 'an SSH login failed');
      return null;
    });
    if (login === null) await sleep(Math.max(0, answerAt - performance.now()));
    if (closed) return;
    if (login === null) {
      log.info({ address, sandbox: sandbox.slice(0, 64) }, 'an SSH login was refused');
      return context.reject(again ? METHODS : []);
    }
    onLogin(login);
    context.accept();
  }

  client.on('authentication', (context) => {
    if (++attempts > limits.attempts) {
      client.end();
      return;
    }
    const user = parseSshUser(context.username);
    const { sandbox, token } = user ?? { sandbox: '', token: undefined };
    if (token !== undefined) void decide(context, sandbox, token, false);
    else if (context.method === 'password') void decide(context, sandbox, context.password, true);
    else if (context.method === 'keyboard-interactive')
      context.prompt([{ prompt: 'API key or access token: ', echo: false }], (answers) => {
        // Given up for another method.
        if (Array.isArray(answers)) void decide(context, sandbox, answers[0] ?? '', true);
      });
    else context.reject(METHODS);
  });
}
