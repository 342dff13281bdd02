"""The codebooks of the IQ1, IQ2 and IQ3 formats.

Source: ggml (https://github.com/ggml-org/ggml, src/ggml-common.h: iq1s_grid, iq2xxs_grid, iq2xs_grid, iq2s_grid,
iq3xxs_grid, iq3s_grid, ksigns_iq2xs), Copyright (c) 2023-2026 The ggml authors, MIT licence. Here each entry is
a code into the few magnitudes that its table uses, packed low bits first, compressed with zlib, in base 85.
"""

from __future__ import annotations

import base64
import zlib

import numpy as np
from numpy.typing import NDArray


def _grid(width: int, magnitudes: tuple[int, ...], text: str) -> NDArray[np.float32]:
    """Codebook of `width` weights an entry, float32 [entries, width], read-only."""
    packed = np.frombuffer(zlib.decompress(base64.b85decode(text)), np.uint8)
    bits = 2 if len(magnitudes) <= 4 else 4
    codes = (packed[:, None] >> np.arange(0, 8, bits, dtype=np.uint8)) & ((1 << bits) - 1)
    grid: NDArray[np.float32] = np.array(magnitudes, np.float32)[codes].reshape(-1, width)
    grid.flags.writeable = False
    return grid


# Seven sign bits -> eight: the eighth makes the number of minus signs even. uint8 [128].
SIGNS: NDArray[np.uint8] = np.array([i | (i.bit_count() % 2) << 7 for i in range(128)], np.uint8)

IQ1_S = _grid(
    8,
    (-1, 0, 1),
    "c-jq@LCUgF002ue%2kF+wz9~mPLUrf*~%xrhq}s8$xcy`VXiWKlC3N<s#E^|31%}eOsz)L$XcsL)#w^q6KccSq&BN5HBd8asOHypwL>kgB{f_tYt"
    "P!J_Nz7OWSy=vb*|3W`*pD{)z!LIH|ntN)ZMyQ59*tGR8Q+!J+D{w8bJ^(f+AQ#Acn+*m=OvA2%GSTkk}CiA|?_dB`{GCCGjLa#E+mGOoMBP4XL3"
    "uV8dy64Zo2#ibnMx+#pG^NwQ>*?2}V+PAcS*)JZ^^BqR}OlPhvf`s9Y(l6x{GF?l2J<b!;X75OH=B-7-ZQd4f~O`{2$R&&*Kn?W;dM$NRDHH&7gM"
    "YLKis>Qa1*042c&00zev{1`$?OKOc+)7%wRkoh3PwUqr+jN_0^X*YvY)fsu4cf5nw!L=PPTN^KZx`*VU84x9MNt$>3Dl69P%}!Q0A*7y<x@NAKt)"
    "tcB^0Jg>Pda5AJys59j3!~Mjf#ub>xoTfgP*kcD#<?2|H;g>*SqBr|Q({2Hm9FbcgQJEZw6A^oX9)3caLt8qfx9(vU{9O|NL5KGIhj(+~PZ(_N;^"
    "b;a(yt9G@n(S=>B>vX+t(2crjH|yrzs#|B8Oq*dCmgzA(GhoJy#3+o)ESMz&7?XhvVr*v3_{@emGH2$(WDI6*Ou^il2lHYo=F1Q)$x<xMGAzq-EY"
    "Aw;kQLbpJ7XnQW))Ut0c)@(3t7b4ti!sj$NFr*hU|_#utzpxV>V$gY|3UVW^=Y+?`+9F*@~@m4UXiR9LsTBkLz;-Zp_WOKThTpZow@%z(Edi7H4x"
    "V=W#x_;X-c9ow$U%a+rH@Uykl^J+UYC<eu8odU_A`te(?b_1vD<3wmKM>ZQG`SM@r4muLAtKj20FkC%CcU+{o8dB`K)<{f^;`}~$a^C^GjF@NJ9{"
    "G0#s?LOBZ^~Zg=ulBXR-Z%QNZ}r`N&=31jKkeuJd%q?SLQ9|oRuF`tAPN&<CMW_BY{3<LVJ94fSV#mcl)_V}gpcqO$N@cI2K+!A{0-!RHh=?b;0)"
    "Y>H}D6+AR1f-`Jfn7gZi*Fq=xj69SXzYa59_?l_40Sp*{46`(ZpxhUpLw%i(kQ8UBXkh#7Gsek6|Mkup+8+Q=Beku`Eg!6+J~qij@+9;52N-mEwf"
    "r{Y{x#Dxe%Q-q=|u0>zmh-dL4W+E1E;$3`*FYzsYMRMF3cgOr#97|(u49BanI}XRk@o9V+-^aBHF=<Vx2|E!c!^vban<x`7F(>|HH#tn=Nir!X&&"
    "g-<o3y9&l$r8VajH(WsWF99cj`@pX*i9hmuWsNrmtx=t<8v8Yevn4*>E<Q&1T9B%+So9`Lo^ZFpFo&4A08hbM~42X5^fnb8~U7&5b#nTXSdb&b@g"
    "s&*sJaF@Mi%QeA3DO{pz)C0633p468H(pZ{GinNfH5|B&@N=ULLNAjhOw3YVKQ94N%=_+BVlpfMkBLC<==8yXm|D-?T5B@oS-e354{>%QVzq-uIy"
    "gZc^c_A-lAe%Cjk?hKA*_Su+R^H1e`7B@LtBmDRe#l?Bt`G{TPztRu3afAmuLz2$%oItH6-7}MP0<ygm<m*oVkx%bDxTsiff6bQ<)}nTtfWe&U?o"
    "=y<*ro9NBJprl~mg*qq1sG?W+TIq)yej`ll-DLe*8E8Y)zgYO8D2S2yZjjnqWVRIEPKm-<%81-)Pw{e`&rTWAY?0T<T7U3iON5iX)dy2uv!qF7Xm"
    "x<+bEjnX<Aqp?~~8)zeKtj#q=TWUZvG*g2b(rj&|tu<c@w5@j1&e~POTCUx+hxXFm+E?S2@={%DOSrU_&eB_k%WPRK>v}^c^`_p|yE?1)^?^Rpr}"
    "|u1^o0&|Q-?azZQa*5`bj_QSik9|{?On0_kSo_pbaQM0|u~w13kb40f=A>CSV36AOi)cKm$4ezyKzI009fwzyU7sfDZx?f&+*^3NnB}4hm3$3j9F"
    "bXc}FEHTuTD7#V+tVk`|{m<BYEVH<11HzMO=Tn%g##@%=s4U;r!lQCJ7GkYd)4ouOUm@`u{Wm7R#Q!|&QZUWOZp@~e(v`xo!&9&*7z8RRIxie!kF"
    ";g=$v6-8N`7mE*W&X@MBwz!QunF6+18LZW3}hh(dDw>oID#S^!zr9Y3I0JDDo}+Bs6ib9Xh0J}h@b^+=)e_pp$B~!zzq!H7VhB@M(_+1c!4R*Aci"
    "@-!2&+u3s&$Azp#eth(Hb0L@m@tG-42odWc5?8lWK>ArXzy1Wl2I6r`dB($Es=2p|KQ2qJ_mWFrT;$U{B~(E&y1gkp3?2}%)0cl1ORdZQ2eqJ~9U"
    "O{;BnEY|8-18Zg}*1}p^z%ngpA<MFCYh|r1&+@H<b+#_n)xy@zdRSkpZWA_XQ#NfgHfwV>Z;Q5M%eG>xwr1-#unpU^p^a?Iwr$6DZO``Yzz*%b9o"
    "c6)wKE&rxqY(>yRsWj%VC|qBRHZncBYQvEF8@N4s?)XIkvNQd}rfqoxPJdR|h+}b93&_!y#A9id*q3aV4+x6<nc}wQ^SO%3B4iaJ66Mt7=tu8*bB"
    "WyIq%c2ky`vyHi(jH5a(hMXv4oZs2a+qno%_7rPJl?S5T)&8_+Md@ZfjHC&^$wO*~Gb-K>i)tdIY9_w*l-y3*iZ|cpxKTq)%-qHh}=|K;9w&!>&Z"
    "|(Ws(TlvZck!-X=3y`QZr<H{crWkkk$%gkeA;Jy&gXsESA5mieBB4W=|dm+w(t6$@B4ut`X~SFCw}T<Klcm&?mzv?fBPSw2-*P~2*Eg*1k+$1D8V"
    "9F1|Tp47@)ukoM09B!6w)Rhad`)APe%~78F4lyn=V|3%Cux5jWDt*uagmaW~;6+N7J?=Dn$hjj$84;UFA^<8T_zLn%~3HC%)sG(#Ao&<<CjA8x}#"
    "cnp&ehmY_TR^d0Kx7@b3mA3L$+v;1mwYJXI+xpvZd)j8(+xEVFZ)-bZ*V<7#VK>}OcC($b(|2HJ?$FNO`Mcfju#0!e4)4m{bNAW(cI2MkGkb2&@5"
    "Q~em-pIU-y3_lM|*2;@4bDn5BJgjywCRezSvj$+JQK<4%C4?2#4Wea+n>!!93Up|FAn84)Gy5;6r(M9zKWPfjRO==_nt;5gwhRd-RUsF*_E=den}"
    "(5gYZRaWswQkrXM>A_9>a!3afm<V1cHM4M<E?W1FKiq6p`x<)v<Mem3{aVP#Ho}`m}(oV~heu5|a<ec17aN3@tQ+m3eUZ+}2#I2Z$*;t5&@g$zbQ"
    "mn)vHe);X<1pUEhd7Rt7{_J&j6d-&CeO_?eP+(wSv*T;`K+F`vwk+t@a&x3vv-cp`MEe(=UPG}t%OS0L`a6oB$*{j0unPp$u2o0agroBDU)aNNqz"
    "}=p)cH}ci}JMMY^aL?E){>#kqu+?IpUTm+X>Xic58=r;W6kw$o0^roFVE4$@INPN(TSRZ=|#shPqQrFObb{q&fg(rb#-Tlz>}={x<V<dwcMSN<wq"
    "<*RztuKLxu!mD)+uHiMhX4m}sz1Fiv*33E?oAt7BHqVwB$jl68D6=v<TV-yx&iw3{ow93|WjMQKkL;V(Fo|23!W~Rw2D6yMJRV>XPw@;(SjGxgv4"
    "(XFuz^hsF~SzMv4dUgVIK!L#Csg!7^nD(GmLSL3w*~Ve&Py$@DJDXM&8NUoX>@PoKJHlU*uX2awCU1%I)0GH~Aqy=I1=guX&c^{FT4+Z%*F08-Ej"
    "T(oMbTH{%9x=;qwKn}3UL=`Ft%x9Zj?nnk<l6y1U?dPTnwia{|d#>Kq&E0khUEDKPW1uRfu7wf_=f?`|ji(_#qt_3dc#iMu^<ej~XcloZ~wYz?Yc"
    "kAxnqkDSK?)aYHYb8;(N~&Z_p&XWza#kuOD9sX;cDXALWn3mDF3a*+e#&1-KH3lZ!92JJ|L8x|hxPyu_^=+%!+m&<=y7>mANiwr5YN_=dUl@tbNH"
    "M*XHVq`p6F>m{pap^c*f7<iJ#^3`TRV8PyQvoq?i2CU*-$Gte5k0U;Zn2ZC>FkdNr$d)v3A_TlK1OHLd<Cr2>^%!3tG&<yYHkUmdHcI#uWDTH)&U"
    "e?I9q_wK(3Z}Ba^)%Wskyx|+Yt@rA^exKf#H-6{u;{ABP-tTwqLws5v>LYxHpUG$T0Uz^&KK5t#Ieg+z^1+|-^Za~1zYqCkzWjIa6~EF~|H7~Hb-"
    "%$k{9eBKxAr4`tsnIhe#777H~WE~`9r_m@9>L%$q)a^-}CqR{eJ%dt$R)J",
)

IQ2_XXS = _grid(
    8,
    (8, 25, 43),
    "c-jTQ!D`|_7y#gZhJR$tX-1;NJ&h6<w@>jWBoccXi<N9oi72>lF$tq|dy2(Ed$Ywu_bvDP05}Mc5P*gd3`}7TcaT5^7D}jL2M$_zfiGYTnPNjm%("
    "Hg}obxGfIYUH+6O55C#R4mA&|`-;1i^(AMl8f1;lx?=d#Xo0-@Eld3MpkM=Q5F*wDLhdOYBph2VuYzDy1fhRHeM?)SCh=wb52TX{X~sK7de$CY*)"
    "K(1p=(JA~0_#3GDTL{SsLSd6dZ)ekV-1ST`Jai%rDCdCA%e9B^sRZQ_FhFLP(&AOj*ZswPHcE<=wQA87piKw6rRn(BDjvz5fow($fuvDc*x=9ZyW"
    "HK|E%RaI}9_O%N1s1BHA}?TBF6(8x%<sE<u+nNfw#GX9Y;l#YZmaV{w|-p*k8HEvK&i`dxhv_ne8NgqR2?d)AM0paZDA*NYCqWfeR=@LUEmVeI&7"
    "kb8r?FFUiqOXUwJq#j+bNqM5pS+pYgAL!A^B?N8M*PI=gfJ3YY06yR6=tck{uo_IkYbKjAC7*>C*!9|e4GT>",
)

IQ2_XS = _grid(
    8,
    (8, 25, 43),
    "c-jTQQBUeT7y#h6O}iAX+NGH3RUu%IU(qg|8D4c}5Ik3t$QKX4q9fBxuF#-SuO{)B$*=sL2LJ;F23-&!;RH@W!2m`u1_Kr@VG0heVFnAhg*))Dfd"
    "{DJ8TRl24Io5NfI5hy5cN=m&QKo>kw!5}P>M2?qXONd5>;r20Aoxs!vagJu)!8PJi{JuF(QNnq(e9fNsmONPliO3m?R`68Oh0<6r>~-*%6?aQp%{"
    "Hk}7JbrH<ZGPf<Vu9-Id{h=VEsh8bmyb(vt2DK=t;S?1V+dDgHaLmkrL9o;EAPaWv0?zsEbZMujP9`Fw5Jmftd@jf4N&10VMlxIBW1z+=$SA54oU"
    "_k{FLP(*65mq?i#a_G#6p}Cqd8or81c@b;ObRKbl15rNl}_GCFHw*5cu)7>M4n7fP(&ggg^`Z(=rMv*divjKcJ_M)3M;CZ>MEh6QpzZ+obswss89"
    "O5uls3#)rY}g;0Nsh4atxXFNS&uBQv@leT>lg+4;{ojM=z5R^!>Y9v{Z{7rP5KQIpN2o@^&b6CLP|<~r0p9qGOvYOQ0P=u}_nOy|1LD_!bJ?=%=}"
    "s9{DJX_PU>8fUzDFb9KT67x8WFJc{o#g<xTg_ZWyDr>B@&U(AIC?N??hKWu-6S(YN+DmtdQj+pir%9Tp%M_+!YNu}ccS^3nVMiTv!bzvx*coS?bK"
    "aqhWIXF-I*T*7w%5mNl#`t2{aoioUglpp%-GD&>REq&KmVG;LN3h0Ej|`!H~J>NdH910Qt(0-d9f@Wi{Aonhs&$w%M$KR?)XZtlGXPL-LLOQe}i?"
    "tUarAoPd)R(ORxOI8*jby-fw*Cj~<nz3`$<=GAnON*r<))Y&OlN-Jpt8yb7ycrK_TPs^Gys{CkKV*N;%MdQ|_ZeZ8sMI(Qmv{kGn|ZQCu{ksaUZ-"
    "F#Q=;Cb+T_dI`jdVxLN+r8T__7|_a*OyoGmc9SHPd|E}#V0hlVNJJD&7^6X?Ca+1=L-(_zz&mxKQssZ{rbK7dH?CQsvWfBwrSgz{8qn@zvJWN_<T"
    "Gb{|C1a?)v",
)

IQ2_S = _grid(
    8,
    (8, 25, 43),
    "c-jTQL2sf=0|4L|GD8MWGh{HZr@>%j{S`B0AlTDju(3U1qnqyj3NX-EPuO7NekW_(H(h___dEbt00ROBfB_DMAOHf4z!*$`0ve=X1`L>k1z3U=Sc"
    "9M77pTA%v|tAgpa*C07u*1Z2-?tr6uQuZJ`7<5C5&MLGnm5yKEfwh!VP?dHEdu9Kj0C5!7BuoWnqh0%;J`?rk1j_m0B~)SPQGNT5E6h*2RJdAsab"
    "}A{TkcM<I&P9lA#n#VA1;dO$fU&?9<6C3-;{RHFvHp?B1wBRZikbVUGL7-ND5m|>2GIKTpr@dPWZaf)Zy;5lC4C0^k*uJ9JOc!v+T$7c*}WZSl5Q"
    "`@tpo!FV3+l5`)wcXgA4TwcBA%qc5h9n?@jLDQJqDe|-#E>~zkR@4>HK|BTdU7MsK@N3X$8&rqbfl9wnUgz(Q#!TNIbgsBd@veJ2GfBV{24%ss7)"
    "P8sY^ZT(~w5=j!GKSgl06S1%0GXw4^U|Ltkl48~R2&dZZ`%MXwYvi(y9CfHB6|kOfSz5gW4!Q%tjz&6r_xwqQ%PVry2hEo<419aztxi(JR0uIGks"
    "<VrVjbGLA7w{bfcaEoJ3IOCiTdB6o9^9fg6^OVoH;d8#=OTOZ3Uhyq&`HmlW&(9os$g@4iqn_(|p6`WT<Vi2~5-;;|ukcE*_8PDAzz`3~kPZ1z4A"
    "oE%&9EBYhR{d8?K?j8J>U03U;441_?e&kg<tx$-}oS~0vwQl1w0Ue3UpwCU%@3nKj;tn<M9U&mcW7tCb$@iKnO7wQ=x<wM$E-RtVJdEq8B#-Lln}"
    "`4ZSc7Wf+G^n1@AJhIQD4T?j^l(P%UoO-FiUM!V5|^gV(RitNaVXyiqH6h=`bqc}>UEXt!IDx*4TqAmhsJSJl{=3_BdV?8$GpW|u_@6a8+lXp*dV"
    "1g%X!Y68?CuXvr+$QiI-P8Ny{a`wpuBW@{ehMX$wsa(wuJoiYf5=cq@=i(_%S2}KLFTfMkMc>D@<ncBEgRX%qddtkd6hs}3M-<R;%cY@CDcfbl~P"
    ")zYNm{utA$#sm0GJxZB?sw>Y#dcRxm~}josLb{WywcoWxn2$3<Mmb=<^2TN-Pk2byWFhdR(gkMvkiw9;CqdZvw@>xEwGm0s&gZ*{A8`k;G#)-XYd"
    "oj3_i+{8=#But`2CUKG^S&}D3QYOEXI%$$F0jZVZl%y=>sYq3-Q<GNd-xOvjb26H_nV0!lm_?b);w;IsEYFIp%$lsrz|5NA8JV#epNW~8>6w{Tv("
    "FiPKo9gmJ^*7GY=~ioo1qDeFe5WI6QhhashJsL=4N4*W@Xl<GF#J{ojI7^z#Qdv?&LIgb1(PvFpqMX$9a-xd7c+}nb&!fcR85jIhnILpNqMg>$#c"
    "#npbmJpu#Skf);M!6@C#GQ6Y=CNQ$h;i=rrtx@d~701In@7i7T}d?6NUp%-RRE#M=1q>p!x@)0bpC0>#xTk@q?s-<3<<@2&y!YA}ZpX3vG4xZcR?"
    "`K$|(k^M~mR{+XVHuUOOv<dx%c3mHrtC_vvQ~ISR&2#rVx?AkWmeVd&kDWJ7y0t|^7R7Ncum%9&DUbB)_QH$)f#TlhHm8MVe`8A*npq?Pxy*n>Fe"
    "h8^a_4Wf5pGQeuK)Ya78Ls@hYf9HLg^pD^ty@MYXI}RaLdsq3SDGquQxy?bcrH*I^yivX1Md&g#4_>bh>~uKrhpE#3~cY|FQ5tG8wg8`Rj1)6m9k"
    "yvA?BMmBMiG+C23MN>9)(==TJTC2q^X<5r#(W+Lrrmfn23*XQieY<~?Z(xUaY{z$Mr*~#|*}-@8F5frrqy2LKyx;CGd)T4Q>1gM6UgvjFC%d>yx~"
    "$8)qAR<)Yr3uj2Yg@$eozN}Fo)*@{6HV{Lw@}C0eY*)J?UA`d(o?2_olD<&mJDpksjsobo@Gk&-8Qs2~X%mPj@GI`ga0<W`E{?y8nSQJ`c|PJUUO"
    "$>a5S^d^z9F@@w;DT?UuYWpbHbwwK*yfBC+^E4tFFyuM$rSMWFZoBucXo_t@vi+^wb$Zc>Fx6y5K+ud%r{{y~e?!N",
)

IQ3_XXS = _grid(
    4,
    (4, 12, 20, 28, 36, 44, 52, 62),
    "c-jrlxq_-N6adgHAnhffwn+eK6A)<;L0Ui^TO7AGg3R~7cfQ~tM39AC<e@d<NFt3&G@%(`Ofg`F1&*-73Etx~HW(2?EaDPQB+(=#IqAri%mh=10%"
    "bI!hI&?RRo2y-tl7f0V<&cRXN$)I9N$?v2j}Kspa8%?KmZC7*g^v>AeXqV%U$VWMj0^11XFBe$Ri&2w0HDg9`<d&_4zVf9+#h`y^`zVf17ZZdz^F"
    "0H(c|QV?l*2KrkVM5_j<yMj%O~E7y`sDRWuKi^Ks0eqe%ckcFp^Msc){z7dXTyo&1>D^N@c6{uD{)u@mrnrp2qebhLi2_#X{Cu8EKX{xr(cHE+Dk"
    ";&|m`McfjzDx5Vw~BR<6?t(guElrH%e*Ygp?sCjp*~nuS3RnzKGdeR8)#Ug8rJSx)1q$CZMsY6_enqY<a9d0IXK7X@k}oI(*A_k@){1+a2y_kxZQ"
    "5+-^Z`I@9x#Ze)iAwMc?90jcptQCNaI)e2Nbn>#-lvw4Bmun8bJgMKhVhS^fP3Oa56L",
)

IQ3_S = _grid(
    4,
    (1, 3, 5, 7, 9, 11, 13, 15),
    "c-jq-xpt~R06=F$+F4lInE|97Hf`CImPL~mNlaQqllS{CKXA{v_W}R`0v50V1q^WD01rr@Km;;Sf*PDa2L>>K87$xdUf>@95JChAq>w=uN*KTxCa"
    "{1lyumx%{%{ak$VL<i<ROJ3WKfQ3bV3~((1cd>L>M#dVu>|QaE1@K#XTPJH-6wB42U2;Q6wZODM>>HvJzwwOIq66TbWf^C#$o*tf#fxv7Oi@yK(o"
    "}0UO!GmbSL{c4qhX<xdDwL<yyoQ9)hmQ%N;VXig9GLf`0(Zhy*<VYXwGIZQFbGFGvkjcjGVe=#_Bxz8mJdCE)P@GGDB#-Sj>7E}nKL@bQRMI{!o3"
    "hY=8cN`~iGN*RVPVZbC=u%g>$~A844zBb<FZNpR>_H#<)aSnP3%~LgfAxWc5=%?kl1eTe=}9F68A~HmS;<D8WG_egEm!%JKYxReqDm-VX%(qN<*H"
    "VLf|_VsD;;Q~kGj&6e%BBE(jY*A6|g`DVUPq_PzQbR6~NFAWf+8MScFx$g+C#QSfrz4R7O*@MqrQj_FnC;``g}%S-g);+{As13^T&G#y8p|CNqVp"
    "O=~(cm=E(XFu{qHIEhMvq)g^yOMVlO@>Hg2nx}mVGnzS>%7QG;Ojc!0)@9f1nc<w}Uas>bAM-i?%wa(bUPMJ&w8dNTEWAT?fJc0kM|~`gpd=+PWf"
    "_)nnU+=AmurbCyJD57bY-fdYO0~SR<Oo3t=(GHSzXre^-`}jX;>o~+2|%|iUzc(4clW|wvX02*(Y^cPU4)O=QHix&U8&Tbf~Aj)9b$M+rI0^{;Pl"
    "WaKM8#@Iejfunk~jV=$WWFis<y?1@hC)K0^6pPm!Ekc+&em-B^R_t)V%UF$dWPTuu9o5k$T$(+se3~urk-#%}A$(MS$F3Ykm;KTV)ALU2%*?caa;"
    "EwP4eZE^?<rn)F-(V%Hy~<UuhqYWU>$0K;dxVeXaeBawY;^NBwV7?$&@+7&&*=$Y)=RwPtAFXA`Um|czu@10ksz_)",
)
