// Policies of Trusted Types (https://www.w3.org/TR/trusted-types/), in browsers that have them.

type CreateScriptURL = (text: string) => string | null;

/** TypeScript's DOM library does not declare it. */
interface Factory {
  createPolicy(name: string, rules: { createScriptURL: CreateScriptURL }): { createScriptURL(text: string): string };
}

/**
 * Makes a policy for the addresses of scripts.
 *
 * @param name a name that the security policy allows, see web/serve.mjs
 * @param rule gives the address of a script, or null if the text names none
 * @returns the address in the form that the browser starts scripts from; in older browsers it is the text itself
 */
export function createPolicy(name: string, rule: CreateScriptURL): (text: string) => string {
  const { trustedTypes } = globalThis as { trustedTypes?: Factory };
  const policy = trustedTypes?.createPolicy(name, { createScriptURL: rule });
  return (text) => {
    if (policy) return policy.createScriptURL(text);
    const address = rule(text);
    if (address === null) throw new TypeError(`no script of the page is named "${text}"`);
    return address;
  };
}
