/** Gets the certificate with which this gateway connects to runners on other machines. */
import { connectorOf, type IssuedCertificate, type Peer } from '@releap/certificates/hosts';
import { GATEWAY_CERTIFICATE_PATH, HostCertificateResponse } from '@releap/contract';
import { Check } from 'typebox/value';
import { Client } from 'undici';

const ANSWER_MS = 10_000;

export interface CertificateClientOptions {
  /** Internal listener of the control plane. */
  control: Peer;
  credential: () => Promise<string>;
  gatewayId: string;
}

/** @throws when the control plane cannot be reached, or does not issue it */
export async function requestCertificate(
  { control, credential, gatewayId }: CertificateClientOptions,
  request: string,
): Promise<IssuedCertificate> {
  const client = new Client(control.origin, { connect: connectorOf(control) });
  try {
    const { statusCode, body } = await client.request({
      method: 'POST',
      path: GATEWAY_CERTIFICATE_PATH,
      headers: { authorization: `Bearer ${await credential()}`, 'content-type': 'application/json' },
      body: JSON.stringify({ gateway_id: gatewayId, request }),
      signal: AbortSignal.timeout(ANSWER_MS),
    });
    const answer: unknown = await body.json();
    if (statusCode === 200 && Check(HostCertificateResponse, answer)) return answer;
    const { error } = answer as { error?: unknown };
    throw new Error(
      `the control plane issues no certificate: ${statusCode} ${typeof error === 'string' ? error.slice(0, 300) : ''}`,
    );
  } finally {
    await client.destroy();
  }
}
