/** Whether the control plane can connect to the data server of this machine, before a runner starts. */
import { createServer } from 'node:http';
import { HostCertificate } from '@releap/certificates/hosts';
import {
  HostCertificateResponse,
  RUNNER_HOST_CERTIFICATE_PATH,
  RUNNER_REACH_PATH,
  RunnerReach,
  validate,
} from '@releap/contract';
import { pino } from 'pino';
import { type DataListen, startTlsListener } from '../data/tls-listener.ts';
import { type ControlPlace, postToControl, refusal } from './control-requests.ts';

/**
 * Listens there meanwhile, unless the runner does.
 * @returns why it cannot; undefined when it can, or is of a version that does not try
 */
export async function whyUnreached(
  place: ControlPlace,
  credential: string,
  listen: DataListen,
): Promise<string | undefined> {
  const log = pino({ level: 'silent' });
  const certificate = new HostCertificate({
    async issue(request) {
      const answer = await postToControl(place, RUNNER_HOST_CERTIFICATE_PATH, credential, { request });
      if (answer.status !== 200) throw refusal(answer);
      return validate(HostCertificateResponse, 'body', answer.body);
    },
    log,
  });
  try {
    await certificate.get();
    const http = createServer();
    const listener = await startTlsListener({ ...listen, certificate }, http, log).catch(
      (error: NodeJS.ErrnoException) => {
        if (error.code !== 'EADDRINUSE' || listen.url === undefined) throw error;
        return undefined;
      },
    );
    try {
      const url = listener?.url ?? listen.url;
      const answer = await postToControl(place, RUNNER_REACH_PATH, credential, { data_url: url });
      if (answer.status === 404) return undefined;
      if (answer.status !== 200) throw refusal(answer);
      const { error } = validate(RunnerReach, 'body', answer.body);
      return error === undefined ? undefined : `${url}: ${error}`;
    } finally {
      listener?.close();
      http.closeAllConnections();
    }
  } finally {
    certificate.close();
  }
}
