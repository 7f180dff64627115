// The file that the programs of "Use it" read: the sentence on the screen as numbers, and the weights in use. This
// module is loaded only when the visitor saves the file.

// The source: with the package's built entry, boot.ts would share a chunk with this module, one more request at the start.
import { writeSafetensors } from '../../../../bindings/src/safetensors/write.js';
import type { ForwardResult } from '../../attention/messages.js';

export function sentenceFile({ tokens, heads, weights, trace, embedDim, headDim, given }: ForwardResult): Uint8Array<ArrayBuffer> {
  const wide = heads.length * headDim;
  const bytes = writeSafetensors(
    {
      x: { shape: [1, tokens.length, embedDim], data: trace.x.data },
      q_proj_weight: { shape: [wide, embedDim], data: weights.qProj },
      k_proj_weight: { shape: [wide, embedDim], data: weights.kProj },
      v_proj_weight: { shape: [wide, embedDim], data: weights.vProj },
      'out_proj.weight': { shape: [embedDim, wide], data: weights.outProj },
      ...(weights.inBias &&
        weights.outBias && {
          in_proj_bias: { shape: [3 * wide], data: weights.inBias },
          'out_proj.bias': { shape: [embedDim], data: weights.outBias },
        }),
    },
    { metadata: { sentence: tokens.join(' '), heads: (given?.names ?? heads).join(given ? ', ' : ' ') } },
  );
  return new Uint8Array(bytes);
}
